// The page's end of the audio thread.
//
// Rule: `stop` is silence in the same turn of the event loop as far as this thread can make it: the
// message that empties the queue is on its way when it returns. Positions are samples at 24 kHz.

const SPOKEN_RATE = 24000;
const MUTE_MS = 5000; // an audio device that has not begun by then does not begin

export class Player {
  // `tell` hears {what: "started" | "position" | "starved" | "ended" | "failed", ...} of the current
  // utterance.
  constructor(tell) {
    this.tell = tell;
    this.number = 0;
    this.played = 0;
    this.node = null;
    this.waiting = []; // messages until the audio thread is there
  }

  // Must be called in a click or a key press: browsers let no page make sound by itself.
  begin() {
    this.number += 1;
    this.played = 0;
    this.context ??= this.open();
    this.context.resume();
    this.post({ what: "begin" });
    const { context } = this;
    clearTimeout(this.doubt);
    this.doubt = setTimeout(() => this.doubted(context), MUTE_MS);
  }

  // A browser without an audio device may wait for one for ever, and says nothing.
  doubted(context) {
    if (context === this.context && context.state !== "running") this.fail(context, false, "mute");
  }

  // Play 16-bit samples.
  push(pcm) {
    const samples = Float32Array.from(pcm, (value) => value / 32768);
    this.post({ what: "chunk", samples }, [samples.buffer]);
  }

  end() {
    this.post({ what: "end" });
  }

  // Silence now; returns how many samples were heard.
  stop() {
    this.post({ what: "clear" });
    this.number += 1;
    const unheard = (this.context?.outputLatency || 0) * SPOKEN_RATE;
    return Math.max(0, Math.round(this.played - unheard));
  }

  // When a moment of the audio clock is heard, as performance.now() tells time.
  heardAt(time) {
    const ahead = time - this.context.currentTime + (this.context.outputLatency || 0);
    return performance.now() + 1000 * ahead;
  }

  open() {
    const context = fitting();
    const add = async () => {
      await context.audioWorklet.addModule("/page/worklet.js");
      if (context !== this.context) return;
      this.node = new AudioWorkletNode(context, "player", {
        numberOfInputs: 0,
        outputChannelCount: [1],
      });
      this.node.port.onmessage = ({ data }) => this.hear(data);
      this.node.connect(context.destination);
      for (const [message, transfer] of this.waiting.splice(0)) {
        this.node.port.postMessage(message, transfer);
      }
    };
    // If the browser knows audio threads, it was the server that did not answer.
    add().catch(() => context === this.context && this.fail(context, Boolean(context.audioWorklet), "sound"));
    return context;
  }

  // There is no sound. The next utterance tries again.
  fail(context, known, why) {
    context.close();
    this.context = this.node = null;
    this.waiting = [];
    this.tell({ what: "failed", known, why });
  }

  post(message, transfer = []) {
    const numbered = { ...message, number: this.number };
    if (this.node) this.node.port.postMessage(numbered, transfer);
    else this.waiting.push([numbered, transfer]);
  }

  hear(message) {
    if (message.number !== this.number) return;
    if (message.what === "position") this.played = message.played;
    this.tell(message);
  }
}

// At the server's own rate if the browser can; else at the device's, and the audio thread resamples.
function fitting() {
  const options = { latencyHint: "interactive" };
  try {
    return new AudioContext({ ...options, sampleRate: SPOKEN_RATE });
  } catch {
    return new AudioContext(options);
  }
}
