// Rows on an axis of time, as SVG: the page's own pictures and those of the load report.
//
// Rule: a picture is plain data and brings no colour, only the classes of `timeline.css`, so light and
// dark are the reader's choice. It is drawn as wide as it is shown, so text is never small.
//
//   {title, unit, end, rows: [{name, spans, marks}], links}
//   span {from, to, kind, title}   mark {at, kind, title}   link {from, to}: a moment of the first row
//   and one of the last. `unit` is "ms" or "s"; a `thin` span is lower.

const SVG = "http://www.w3.org/2000/svg";
const LETTER = 7.2; // how wide one is, about
const AXIS = 22;
const RIGHT = 14;

// Draw `picture` into `place`, and again whenever that changes its width.
export function show(place, picture) {
  const draw = () => place.replaceChildren(timeline(picture, Math.max(280, place.clientWidth)));
  draw();
  place.redrawn?.disconnect();
  let width = place.clientWidth;
  place.redrawn = new ResizeObserver(() => {
    if (place.clientWidth === width) return;
    width = place.clientWidth;
    draw();
  });
  place.redrawn.observe(place);
}

export function timeline({ title, unit, end, rows, links = [], height = 22 }, width) {
  const left = Math.ceil(Math.max(...rows.map((row) => row.name.length)) * LETTER) + 12;
  const span = end > 0 ? end : 1;
  const x = (at) => round(left + (Math.min(Math.max(at, 0), span) / span) * (width - left - RIGHT));
  const tall = height * rows.length;
  const drawing = element("svg", { viewBox: `0 0 ${width} ${tall + AXIS}`, role: "img" });
  drawing.setAttribute("aria-label", title);
  for (const tick of ticks(span, (width - left) / 70)) {
    drawing.append(element("path", { class: "grid", d: `M${x(tick)} 0V${tall}` }));
    drawing.append(text(`${tick} ${unit}`, { class: "mid", x: x(tick), y: tall + 16 }));
  }
  for (const { from, to } of links) {
    const d = `M${x(from)} ${height - 4}L${x(to)} ${tall - height + 4}`;
    drawing.append(element("path", { class: "link", d }));
  }
  rows.forEach((row, number) => drawing.append(...drawn(row, number * height, height, x, left)));
  return drawing;
}

function* drawn({ name, spans = [], marks = [] }, top, height, x, left) {
  yield text(name, { class: "end", x: left - 10, y: top + height / 2 + 4 });
  for (const { from, to, kind, title, thin } of spans) {
    const inset = thin ? height / 2 - 2 : 3;
    const [a, b] = [x(from), x(to)];
    const size = { x: a, y: top + inset, width: Math.max(b - a, 1.5), height: height - 2 * inset };
    yield titled(element("rect", { class: kind, rx: 2, ...size }), title);
  }
  for (const { at, kind, title } of marks) {
    yield titled(element("path", { class: kind, d: `M${x(at)} ${top + 4}V${top + height - 4}` }), title);
  }
}

// Round moments from 0 on, at most so many.
function ticks(end, most) {
  const rough = end / Math.max(2, Math.min(most, 10));
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= rough * 0.999);
  const count = Math.floor(end / step + 1e-9);
  return Array.from({ length: count + 1 }, (_, n) => Number((n * step).toPrecision(6)));
}

// What the colours mean: `kinds` from class to words.
export function legend(kinds) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const [kind, name] of Object.entries(kinds)) {
    const item = document.createElement("li");
    const swatch = element("svg", { viewBox: "0 0 12 12", width: 12, height: 12 });
    swatch.setAttribute("aria-hidden", "true");
    swatch.append(element("rect", { class: kind, width: 12, height: 12, rx: 2 }));
    item.append(swatch, name);
    list.append(item);
  }
  return list;
}

function titled(shape, title) {
  if (title) {
    const words = element("title", {});
    words.textContent = title;
    shape.append(words);
  }
  return shape;
}

function text(words, attributes) {
  const shape = element("text", attributes);
  shape.textContent = words;
  return shape;
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function round(value) {
  return Math.round(value * 10) / 10;
}
