// What is waiting to be heard: a queue that grows, plays, starves and can be emptied at once.
//
// Rule: pure; time is counted in samples that were asked for. It is the server's virtual player: it
// starts a while after the first chunk has come, and having nothing for longer than 10 ms before the
// end is an underrun.

const PREBUFFER = 0.08; // seconds, as in the server's player
const TOLERANCE = 0.01;
const FADE = 64; // samples in which sound that is cut off goes to zero, so that it does not click

export class Playback {
  // `tell` hears of what happens: {what: "started" | "starved" | "ended", ...}.
  constructor(rate, tell) {
    this.rate = rate;
    this.tell = tell;
    this.last = 0; // the sample that was heard last
    this.empty();
  }

  push(samples) {
    if (!samples.length) return;
    this.chunks.push(samples);
    this.queued += samples.length;
  }

  // Nothing more will come: it ends when it has been heard.
  end() {
    this.ending = true;
  }

  // Silence from here on; what is waiting is for nobody.
  clear() {
    this.empty();
    this.fading = FADE;
  }

  // Fill `out` with what is heard next.
  read(out) {
    out.fill(0);
    if (!this.playing && !this.starts(out.length)) {
      this.fade(out);
      return;
    }
    const filled = this.take(out);
    if (filled) this.last = out[filled - 1];
    if (filled < out.length) this.lack(out.length - filled);
  }

  empty() {
    this.chunks = [];
    this.offset = 0; // of the first chunk, what was heard
    this.queued = 0;
    this.played = 0;
    this.waited = 0;
    this.lacking = 0;
    this.fading = 0;
    this.playing = false;
    this.ending = false;
    this.ended = false;
  }

  starts(asked) {
    if (this.queued) this.waited += asked;
    if (this.ending && !this.queued) this.finish();
    if (!this.queued || this.waited < PREBUFFER * this.rate) return false;
    this.playing = true;
    this.tell({ what: "started" });
    return true;
  }

  take(out) {
    let filled = 0;
    while (filled < out.length && this.queued) {
      const chunk = this.chunks[0];
      const part = chunk.subarray(this.offset, this.offset + out.length - filled);
      if (this.lacking) this.recover();
      out.set(part, filled);
      filled += part.length;
      this.offset += part.length;
      this.queued -= part.length;
      this.played += part.length;
      if (this.offset === chunk.length) {
        this.chunks.shift();
        this.offset = 0;
      }
    }
    return filled;
  }

  lack(samples) {
    if (this.ending) this.finish();
    else this.lacking += samples;
  }

  recover() {
    if (this.lacking > TOLERANCE * this.rate) {
      this.tell({ what: "starved", at: this.played, samples: this.lacking });
    }
    this.lacking = 0;
  }

  finish() {
    if (this.ended) return;
    this.ended = true;
    this.tell({ what: "ended" });
  }

  fade(out) {
    for (let n = 0; n < out.length && this.fading; n++) {
      this.fading -= 1;
      out[n] = (this.last * this.fading) / FADE;
    }
    if (!this.fading) this.last = 0;
  }
}
