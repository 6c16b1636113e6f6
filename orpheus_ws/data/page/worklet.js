// Plays what it is sent, on the browser's audio thread.
//
// Rule: all it does between two messages is to read the queue. Every message back carries the number of
// the utterance that it is about, since what was on its way when that was stopped is still coming.

import { Playback } from "./playback.js";
import { Resampler } from "./resampler.js";

const SPOKEN_RATE = 24000;
const REPORT_SECONDS = 0.02;

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.scale = SPOKEN_RATE / sampleRate; // of ours to the server's samples
    this.playback = new Playback(sampleRate, (event) => this.tell(event));
    this.resampler = new Resampler(SPOKEN_RATE, sampleRate);
    this.number = 0;
    this.reported = 0;
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  receive(message) {
    if (message.what === "begin") {
      this.number = message.number;
      this.resampler = new Resampler(SPOKEN_RATE, sampleRate);
      this.playback.clear();
    } else if (message.number !== this.number) {
      return;
    } else if (message.what === "chunk") {
      this.playback.push(this.resampler.push(message.samples));
    } else if (message.what === "end") {
      this.playback.push(this.resampler.finish());
      this.playback.end();
    } else if (message.what === "clear") {
      this.playback.clear();
    }
  }

  tell(event) {
    const told = { ...event, number: this.number, time: currentTime };
    if (event.what === "starved") {
      told.at = Math.round(event.at * this.scale);
      told.seconds = event.samples / sampleRate;
    }
    this.port.postMessage(told);
  }

  process(_inputs, outputs) {
    this.playback.read(outputs[0][0]);
    if (this.playback.playing && currentTime - this.reported >= REPORT_SECONDS) {
      this.reported = currentTime;
      this.tell({ what: "position", played: Math.round(this.playback.played * this.scale) });
    }
    return true;
  }
}

registerProcessor("player", Player);
