// What happened to one utterance, as this page saw it.
//
// Rule: a record. Moments are performance.now(), positions samples at 24 kHz. It waits for its socket:
// what is to be sent before there is one is sent when it comes.

export const RATE = 24000;
const JOIN = 0.05 * RATE; // how exactly a pause is at the join of two segments; a resampler looks ahead

export class Utterance {
  constructor(number, { typed }) {
    this.context = `u${number}`;
    this.typed = typed; // its text comes word by word, as it is typed
    this.askedAt = performance.now();
    this.openedAt = null;
    this.handshakeMs = null; // null: the socket was there
    this.handle = null;
    this.segments = [];
    this.chunks = []; // {at, offset, samples}
    this.heardAt = null; // when the first sample was
    this.starved = []; // {at, seconds}: the position at which nothing was there, and for how long
    this.over = false; // the server has said its last word
    this.stopped = false;
    this.trace = null;
    this.rtf = null;
    this.socket = null;
    this.waiting = [];
  }

  send(message) {
    if (this.socket) this.socket.send({ context: this.context, ...message });
    else this.waiting.push(message);
  }

  bind(socket, handshakeMs) {
    this.socket = socket;
    this.handshakeMs = handshakeMs;
    this.openedAt = performance.now();
    for (const message of this.waiting.splice(0)) this.send(message);
  }

  add(audio) {
    const { offset, samples } = audio;
    this.chunks.push({ at: performance.now(), offset, samples: samples.length });
  }

  // Whether a message is about this one.
  owns(message) {
    return message.type === "audio" ? message.handle === this.handle : message.context === this.context;
  }

  get seconds() {
    return this.chunks.reduce((sum, chunk) => sum + chunk.samples, 0) / RATE;
  }

  // Pauses in the middle of what was said. Where the typist had written nothing more, there was none.
  get underruns() {
    const joins = this.typed ? this.segments.map((segment) => segment.offset) : [];
    return this.starved.filter(({ at }) => !joins.some((join) => Math.abs(join - at) <= JOIN));
  }

  // When a position is heard, with what was waited for.
  playedAt(position) {
    const waited = this.starved.filter(({ at }) => at <= position);
    return this.heardAt + (1000 * position) / RATE + 1000 * waited.reduce((sum, each) => sum + each.seconds, 0);
  }

  // Milliseconds there and back that are not the server's: what is left of the time to the first chunk.
  get wayMs() {
    if (!this.trace || this.trace.first_chunk_ms === undefined || !this.chunks.length) return 0;
    return Math.max(0, this.chunks[0].at - this.openedAt - this.trace.first_chunk_ms);
  }

  // When the server could have begun: half the way after the opening, and when the text was complete.
  get readyAt() {
    return this.openedAt + this.wayMs / 2 + (this.trace?.ready_ms ?? 0);
  }

  // What its listener waited for: from the click, or from the end of the first sentence typed.
  get firstSoundMs() {
    if (this.heardAt === null || (this.typed && !this.trace)) return null;
    return this.heardAt - (this.typed ? this.readyAt : this.askedAt);
  }
}
