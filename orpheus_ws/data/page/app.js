// The page: what people do becomes messages, and what comes becomes sound and pictures.
//
// Rule: one utterance at a time. To stop is to be silent first, and then to tell the server.

import { Link } from "./link.js";
import { beginning, chunks, parts } from "./pipeline.js";
import { Player } from "./player.js";
import { javascript, python } from "./snippets.js";
import { address, room } from "./socket.js";
import { ms } from "./stages.js";
import { show } from "./timeline.js";
import { Typist } from "./typist.js";
import { RATE, Utterance } from "./utterance.js";
import { Waveform } from "./waveform.js";
import { trouble } from "./words.js";

const EXAMPLE = "Hello! This is speech, made while you wait. How does it sound to you?";
const ROOM_MS = 3000;
const DRAW_MS = 250;
const PIECE = /[^]{1,4000}/gu; // of a text: far below the longest message, and no character is cut
const GIVEN_BACK = ["idle", "session_expired", "idle_evicted"]; // why the server closes what nobody uses
const LEFT = "orpheus-left"; // what was on the page when it was left

const at = (id) => document.getElementById(id);
const wave = new Waveform(at("wave"));
const player = new Player(hear);
const link = new Link({ tell: linked, received, lost });
const typist = new Typist({ begin: () => begin(true), say: (text) => current.send({ type: "text", text }),
  flush: () => current.send({ type: "flush" }), warn: () => say(trouble("typed")) });

let current = null; // the utterance that was begun last
let number = 0;
let speaking = false;
let keyed = false; // the server has keys
let voice = null;
let drawing = null; // the timer of the next picture

// Speaking ----------------------------------------------------------------------------------------

function begin(typed) {
  if (speaking) stop();
  complain("");
  say("");
  player.begin();
  wave.clear();
  at("saying").textContent = "";
  const utterance = new Utterance(++number, { typed });
  current = utterance;
  draw(); // nothing of the last one stands beside what is said now
  busy(true);
  utterance.send({ type: "open", ...(voice && { voice }), trace: true });
  link.take().then(
    ([socket, handshakeMs]) => utterance === current && utterance.bind(socket, handshakeMs),
    () => utterance === current && busy(false), // the link has said why
  );
  return utterance;
}

function speak() {
  const text = at("text").value;
  if (!text.trim()) {
    at("text").focus();
    return say("Write something first.");
  }
  begin(false);
  for (const piece of text.match(PIECE)) current.send({ type: "text", text: piece });
  current.send({ type: "end" });
}

function finish() {
  if (!typist.finish(at("text").value)) return;
  current.send({ type: "end" });
  at("speak").disabled = true;
}

function stop() {
  if (!speaking) return;
  const played = player.stop();
  current.stopped = true;
  if (!current.over) current.send({ type: "cancel", played_ms: (1000 * played) / RATE });
  typist.ended();
  busy(false);
  say("Stopped.");
}

// What comes --------------------------------------------------------------------------------------

function received(message) {
  if (message.type === "draining") {
    link.leaving = true;
    if (!speaking) link.leave();
    return;
  }
  if (message.fatal) complain(sentence(message.message));
  if (!current?.owns(message)) return;
  switch (message.type) {
    case "started":
      current.handle = message.handle;
      break;
    case "segment":
      current.segments.push(message);
      break;
    case "audio":
      if (current.stopped) return;
      current.add(message);
      wave.push(message.samples);
      player.push(message.samples);
      drawing ??= setTimeout(draw, DRAW_MS);
      break;
    case "done":
    case "cancelled":
      ended(message);
      break;
    case "error":
      complain(`${sentence(message.message)}${message.retryable ? " Speak tries again." : ""}`);
      ended(message);
      break;
  }
}

function ended(message) {
  Object.assign(current, { over: true, trace: message.trace ?? null, rtf: message.rtf ?? null });
  if (message.type === "cancelled" && message.text_spoken !== undefined) {
    const { text_spoken: heard, text_remaining: rest } = message;
    say(`Stopped.${heard ? ` Heard: “${heard}”` : ""}${rest ? ` Not heard: “${rest}”` : ""}`);
  }
  typist.ended();
  player.end();
  draw();
  if (message.type !== "done") busy(false);
}

function lost(why) {
  const middle = speaking && !current.over;
  link.tell({ state: "resting" });
  if (middle) {
    complain(trouble("lost"));
    current.over = true;
    typist.ended();
    player.end();
    draw();
    if (!current.chunks.length) busy(false);
  } else if (!GIVEN_BACK.includes(why)) {
    link.warm();
  }
}

// The audio thread says what is heard.
function hear(event) {
  const about = current;
  switch (event.what) {
    case "started":
      about.heardAt = player.heardAt(event.time);
      draw();
      break;
    case "position":
      wave.playedTo(event.played);
      at("saying").textContent = about.segments.findLast(({ offset }) => offset <= event.played)?.text ?? "";
      break;
    case "starved":
      about.starved.push({ at: event.at, seconds: event.seconds });
      draw();
      break;
    case "ended":
      wave.playedTo(Infinity);
      busy(false);
      if (!at("alert").textContent) {
        say(about.chunks.length ? `Said ${about.seconds.toFixed(1)} seconds of speech.` : trouble("nothing"));
      }
      draw();
      break;
    case "failed":
      stop();
      if (!event.known || link.socket) complain(trouble(event.why));
      break;
  }
}

// What is shown -----------------------------------------------------------------------------------

function draw() {
  clearTimeout(drawing);
  drawing = null;
  const utterance = current;
  const first = utterance.firstSoundMs;
  const unknown = utterance.over ? "–" : "…";
  at("first").textContent = first === null ? unknown : ms(first);
  at("speed").textContent = utterance.rtf === null ? unknown : `${utterance.rtf.toFixed(1)}×`;
  const lasted = utterance.underruns.map(({ seconds }) => 1000 * seconds);
  at("underruns").textContent = lasted.length;
  at("underruns").classList.toggle("bad", lasted.length > 0);
  at("underruns-note").textContent = lasted.length
    ? `the longest ${ms(Math.max(...lasted))}`
    : "pauses for want of sound";
  const spent = parts(utterance);
  at("first-note").textContent = spent
    ? `server ${ms(spent.server)}, network ${ms(spent.network)}, buffer ${ms(spent.buffer)}`
    : `from your ${utterance.typed ? "first sentence" : "click"} to your ear`;
  for (const [id, picture] of [["beginning", beginning(utterance)], ["chunks", chunks(utterance)]]) {
    if (picture) show(at(id), picture);
    at(id).classList.toggle("last", !picture);
  }
}

function busy(now) {
  if (!now && document.activeElement === at("stop")) at("speak").focus();
  speaking = now;
  at("stop").disabled = !now;
  at("state").toggleAttribute("data-busy", now);
  link.used = now;
  label();
  if (now) return;
  if (link.leaving) link.leave();
  else link.idle();
}

function label() {
  const typing = at("typing").checked;
  at("speak").textContent = typing ? "Finish" : speaking ? "Again" : "Speak";
  at("speak").disabled = typing && !typist.open;
  at("keys-typing").hidden = !typing;
  at("keys-end").textContent = typing ? "finishes" : "speaks";
}

function linked({ state, kind, ready }) {
  at("state").dataset.state = { open: "on", trouble: "trouble" }[state] ?? "off";
  at("state").textContent = { open: "connected", connecting: "connecting", trouble: "no connection" }[state] ?? "resting";
  at("lock").hidden = kind !== "key" && !(state === "connecting" && !at("lock").hidden);
  if (state === "open") {
    if (link.troubled) complain("");
    offer(ready.voices);
    at("text").maxLength = ready.limits.text_chars;
  }
  link.troubled = state === "trouble" || (link.troubled && state !== "open");
  if (state !== "trouble") return;
  if (kind === "key") {
    complain(trouble(kind, { keyed }));
    keyed = true;
    at("key").focus();
  } else {
    complain(trouble(kind));
  }
  program();
}

function offer(voices) {
  const select = at("voice");
  voice = voices.includes(voice) ? voice : voices[0];
  select.replaceChildren(...voices.map((name) => new Option(name, name, false, name === voice)));
  select.disabled = false;
  program();
}

async function capacity() {
  if (document.hidden) return;
  try {
    const { active, max } = await room();
    at("streams").textContent = `${active} of ${max}`;
  } catch {
    at("streams").textContent = "–";
  }
}

function program() {
  const { value } = document.querySelector("[name=language]:checked");
  const text = at("text").value || EXAMPLE;
  const write = { python, javascript }[value];
  at("code").firstChild.textContent = write({ address: address(), text, voice: voice ?? "tara", keyed });
}

function say(text) {
  at("message").textContent = text;
}

function complain(text) {
  at("alert").textContent = text;
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

// What people do ----------------------------------------------------------------------------------

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (at("typing").checked) finish();
  else speak();
});
at("stop").addEventListener("click", stop);
at("text").addEventListener("focus", () => link.warm());
at("text").addEventListener("input", ({ isComposing }) => {
  program();
  if (at("typing").checked && !isComposing) typist.typed(at("text").value);
  label();
});
at("typing").addEventListener("change", () => {
  if (speaking) stop();
  if (at("typing").checked && at("text").value === EXAMPLE) at("text").value = "";
  typist.from(at("text").value);
  label();
  at("text").focus();
});
at("voice").addEventListener("change", () => {
  voice = at("voice").value;
  program();
});
at("lock").addEventListener("submit", (event) => {
  event.preventDefault();
  link.use(at("key").value.trim());
  at("key").value = "";
  link.warm();
});
at("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(at("code").textContent);
    at("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(at("code"));
    at("copied").textContent = "Selected: copy it with Ctrl C.";
  }
});
for (const choice of document.querySelectorAll("[name=language]")) choice.addEventListener("change", program);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit(at("speak"));
});
document.addEventListener("visibilitychange", capacity);
addEventListener("pagehide", () => {
  const left = { text: at("text").value, voice, speaking: speaking && !current.over };
  sessionStorage.setItem(LEFT, JSON.stringify(left));
});

const left = JSON.parse(sessionStorage.getItem(LEFT) ?? "{}");
sessionStorage.removeItem(LEFT);
at("text").value = left.text ?? EXAMPLE;
voice = left.voice ?? null;
if (left.speaking) say(trouble("reload"));
program();
link.warm();
capacity();
setInterval(capacity, ROOM_MS);
