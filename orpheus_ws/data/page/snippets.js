// Programs that say what is on the screen, to be copied.
//
// Rule: they run as they are; a key is never in them.

export function python({ address, text, voice, keyed }) {
  const key = keyed ? `, api_key=os.environ["ORPHEUS_API_KEY"]` : "";
  return `${keyed ? "import os\n" : ""}import wave

from orpheus_ws.client import connect_sync

text = ${quoted(text)}

with connect_sync(${quoted(address)}${key}) as client:
    with wave.open("speech.wav", "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        for chunk in client.speak(text, voice=${quoted(voice)}):
            file.writeframes(chunk.pcm)  # 16-bit, mono
`;
}

export function javascript({ address, text, voice, keyed }) {
  const target = keyed ? `${quoted(address)} + "?token=" + token` : quoted(address);
  const token = keyed ? "const token = prompt(\"A token of `orpheus-ws token`\");\n" : "";
  return `${token}const text = ${quoted(text)};
const audio = new AudioContext({ sampleRate: 24000 });
const socket = new WebSocket(${target}, "tts.v1.json");
socket.binaryType = "arraybuffer";
let next = 0;

socket.onopen = () => {
  const context = "a";
  const say = (message) => socket.send(JSON.stringify({ context, ...message }));
  say({ type: "open", voice: ${quoted(voice)} });
  say({ type: "text", text });
  say({ type: "end" });
};

socket.onmessage = ({ data }) => {
  if (typeof data === "string") return; // ready, started, segment, done
  const pcm = new Int16Array(data, 16); // after a header of 16 bytes
  const buffer = audio.createBuffer(1, pcm.length, 24000);
  buffer.getChannelData(0).set(Float32Array.from(pcm, (value) => value / 32768));
  const source = audio.createBufferSource();
  source.buffer = buffer;
  source.connect(audio.destination);
  next = Math.max(next, audio.currentTime + 0.08);
  source.start(next);
  next += buffer.duration;
};
`;
}

// A string of both languages.
function quoted(text) {
  return JSON.stringify(text);
}
