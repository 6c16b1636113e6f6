// Where an utterance's first milliseconds went: the `trace` of `done` as spans.
//
// Rule: pure. Moments are in milliseconds since the server opened the context; what never happened is
// left out, and the next stage begins where the last one that happened ended.

const STAGES = [
  ["ready_ms", "text", "text", "until the first sentence was complete"],
  ["turn_ms", "queue", "wait", "until it had a stream of the engine"],
  ["first_token_ms", "first token", "engine", "until the engine said its first token"],
  ["first_frame_ms", "first frame", "frame", "until seven tokens made a frame"],
  ["first_samples_ms", "codec", "codec", "until the first samples were decoded"],
  ["first_chunk_ms", "trim, send", "send", "until the silence before speech was left out and sound was handed to the socket"],
];

// What the classes mean, in the order of the stages.
export const KINDS = {
  wait: "queue",
  engine: "first token",
  frame: "first frame",
  codec: "codec",
  send: "trim, send",
  way: "network",
};

export function stages(trace) {
  const found = [];
  let from = 0;
  for (const [field, name, kind, meaning] of STAGES) {
    if (trace[field] === undefined) continue;
    const to = Math.max(from, trace[field]);
    found.push({ name, kind, from, to, meaning, title: `${name}: ${ms(to - from)}, ${meaning}` });
    from = to;
  }
  return found;
}

export function ms(value) {
  return `${Math.abs(value) < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
