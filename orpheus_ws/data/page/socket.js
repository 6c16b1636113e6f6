// A socket to the server, in the JSON of docs/protocol.md, and why there is none.
//
// Rule: a browser hides the status of a refused handshake, so what anybody may ask by HTTP is asked
// then. A key goes into a header, is answered with a token of a minute, and is in no address.

const PATH = "/v1/tts";
const TOKEN = /^[\w-]*\.\d+\.\w+\.[\w-]+$/;

// Why there is no socket. `kind`: offline, full, draining, dead, key, refused, lost.
export class Trouble extends Error {
  constructor(kind) {
    super(kind);
    this.kind = kind;
  }
}

export function address() {
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${PATH}`;
}

// Open a socket; resolves when the server has said `ready`. Throws `Trouble`.
export async function connect(key) {
  const began = performance.now();
  const token = key && (TOKEN.test(key) ? key : await exchange(key));
  const query = token ? `?token=${encodeURIComponent(token)}` : "";
  const socket = new WebSocket(address() + query, "tts.v1.json");
  socket.binaryType = "arraybuffer";
  try {
    const ready = await new Promise((resolve, reject) => {
      socket.onmessage = ({ data }) => resolve(JSON.parse(data));
      socket.onclose = reject;
    });
    return new Socket(socket, ready, performance.now() - began);
  } catch {
    throw new Trouble(await reason(query));
  }
}

// How full the server is; throws `Trouble` if it does not answer.
export async function room() {
  return (await ask("/capacity")).json();
}

class Socket {
  constructor(socket, ready, handshakeMs) {
    this.socket = socket;
    this.ready = ready;
    this.handshakeMs = handshakeMs;
    this.onmessage = () => {};
    this.onclose = () => {};
    socket.onmessage = ({ data }) => this.onmessage(typeof data === "string" ? JSON.parse(data) : audio(data));
    socket.onclose = ({ reason: why }) => this.onclose(why);
  }

  get open() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  send(message) {
    if (this.open) this.socket.send(JSON.stringify(message));
  }

  close() {
    this.onclose = () => {};
    this.socket.close(1000);
  }
}

// A binary frame: u8 version, u8 flags, u16 handle, u32 seq, u64 offset, little-endian, and samples.
function audio(frame) {
  const header = new DataView(frame);
  return {
    type: "audio",
    handle: header.getUint16(2, true),
    seq: header.getUint32(4, true),
    offset: Number(header.getBigUint64(8, true)),
    samples: new Int16Array(frame, 16),
  };
}

async function exchange(key) {
  const answer = await ask("/page/token", { headers: { Authorization: `Bearer ${key}` } });
  if (answer.status === 401) throw new Trouble("key");
  return (await answer.json()).token;
}

async function ask(path, options = {}) {
  try {
    return await fetch(path, { ...options, cache: "no-store" });
  } catch {
    throw new Trouble("offline");
  }
}

// A plain request to the socket's own path is answered with what the handshake would be refused for, but
// for there being no room.
async function reason(query) {
  try {
    const [answer, capacity] = await Promise.all([ask(PATH + query), room()]);
    if (answer.status === 401) return "key";
    if (capacity.draining) return "draining";
    if (capacity.active >= capacity.max) return "full";
    const health = await ask("/readyz");
    return health.ok ? "refused" : "dead";
  } catch (trouble) {
    return trouble.kind ?? "offline";
  }
}
