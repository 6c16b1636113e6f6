// The pictures of a load report that are on an axis of time.
//
// Rule: it stands behind timeline.js and stages.js in one script, and draws what the page says.

const { streams, slowest } = JSON.parse(document.getElementById("pictures").textContent);

show(document.getElementById("streams"), streams);
if (slowest.length) {
  const place = document.getElementById("slowest");
  place.before(legend({ ...KINDS, way: "network and client" }));
  show(place, waits(slowest));
}

// A row for each turn: its stages from the moment at which its first sentence was complete.
function waits(turns) {
  const rows = turns.map(({ name, first, trace }) => {
    const spans = stages(trace).filter(({ kind }) => kind !== "text");
    const zero = trace.ready_ms ?? 0;
    const rest = Math.max(0, first - (trace.first_chunk_ms - zero));
    const way = { from: 0, to: rest, kind: "way", title: `network and client: ${ms(rest)}` };
    const moved = spans.map((span) => ({ ...span, from: span.from - zero + rest, to: span.to - zero + rest }));
    return { name, spans: [way, ...moved] };
  });
  const title = `The ${rows.length} slowest first bytes, the slowest after ${ms(turns[0].first)}`;
  return { title, unit: "ms", end: turns[0].first * 1.01, rows };
}
