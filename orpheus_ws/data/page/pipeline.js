// An utterance as pictures: where its first milliseconds went, and each chunk against the playback clock.
//
// Rule: pure; what is drawn is `timeline.js`'s. The server's clock is laid on ours so that the way there
// is as long as the way back.

import { ms, stages } from "./stages.js";

// From the click to the first sound, in milliseconds: a row for each stage. Null while there is no trace.
export function beginning(utterance) {
  const { trace, chunks, askedAt, openedAt, handshakeMs, heardAt, wayMs, typed } = utterance;
  if (!trace || !chunks.length || heardAt === null) return null;
  const zero = typed ? utterance.readyAt : askedAt;
  const rows = [];
  const add = (name, kind, from, to, meaning) => {
    if (to <= 0) return;
    const title = `${name}: ${ms(to - from)}, ${meaning}`;
    rows.push({ name, spans: [{ from: Math.max(from, 0), to, kind, title }] });
  };
  if (handshakeMs !== null) {
    add("connect", "way", openedAt - askedAt - handshakeMs, openedAt - askedAt, "until the socket was open");
  }
  const there = openedAt + wayMs / 2 - zero;
  for (const stage of stages(trace)) {
    add(stage.name, stage.kind, there + stage.from, there + stage.to, stage.meaning);
  }
  const [first] = chunks;
  const way = { name: "network", spans: [], marks: [] };
  for (const [from, to] of [[openedAt, openedAt + wayMs / 2], [first.at - wayMs / 2, first.at]]) {
    if (to <= zero) continue;
    way.spans.push({ from: Math.max(0, from - zero), to: to - zero, kind: "way", title: `half of ${ms(wayMs)}` });
  }
  if (wayMs >= 0.05) rows.push(way);
  add("buffer", "speech", first.at - zero, heardAt - zero, "the player's, until it is heard");
  const end = heardAt - zero;
  return { title: `First sound after ${ms(end)}: ${summary(rows)}`, unit: "ms", end: end * 1.02, rows };
}

// Every chunk: when it came, and when it was or will be heard, in seconds from the click.
export function chunks(utterance) {
  const { chunks: all, askedAt, heardAt } = utterance;
  if (!all.length || heardAt === null) return null;
  const seconds = (moment) => (moment - askedAt) / 1000;
  const came = { name: "came", marks: [] };
  const heard = { name: "heard", spans: [] };
  const links = [];
  all.forEach(({ at, offset, samples }, number) => {
    const [from, to] = [seconds(utterance.playedAt(offset)), seconds(utterance.playedAt(offset + samples - 1))];
    const ahead = ms(1000 * (from - seconds(at)));
    came.marks.push({ at: seconds(at), kind: "tick", title: `chunk ${number + 1}, ${ahead} ahead` });
    heard.spans.push({ from, to, kind: number % 2 ? "speech other" : "speech", title: `chunk ${number + 1}` });
    links.push({ from: seconds(at), to: from });
  });
  for (const { at, seconds: lasted } of utterance.underruns) {
    const to = seconds(utterance.playedAt(at));
    heard.spans.push({ from: to - lasted, to, kind: "trouble", title: `nothing for ${ms(1000 * lasted)}` });
  }
  const last = all[all.length - 1];
  const end = seconds(utterance.playedAt(last.offset + last.samples));
  const title = `${all.length} chunks, ${(utterance.seconds).toFixed(1)} s of speech, ${utterance.underruns.length} underruns`;
  return { title, unit: "s", end: end * 1.01, rows: [came, { name: "in hand" }, heard], links, height: 28 };
}

// How long the way of the first sound is, by where it was spent.
export function parts(utterance) {
  const { trace, chunks: all, heardAt, wayMs } = utterance;
  if (!trace || !all.length || heardAt === null) return null;
  return {
    server: trace.first_chunk_ms - (utterance.typed ? (trace.ready_ms ?? 0) : 0),
    network: wayMs,
    buffer: heardAt - all[0].at,
  };
}

function summary(rows) {
  return rows
    .map(({ name, spans }) => `${name} ${ms(spans.reduce((sum, { from, to }) => sum + to - from, 0))}`)
    .join(", ");
}
