// Keeps a socket while one is wanted.
//
// Rule: a socket holds one of the server's places, so one that nobody speaks on is given back after a
// while, and there is a new one as soon as somebody is about to speak. What may pass is tried again.

import { connect, Trouble } from "./socket.js";

const IDLE_MS = 45_000;
const AGAIN_MS = { offline: 3000, full: 2000, draining: 2000, dead: 10_000, refused: 3000 };
const KEY = "orpheus-key";

export class Link {
  // `tell` hears of {state: "connecting" | "open" | "resting" | "trouble", kind, wait, ready}; `received`
  // of messages, `lost` of a socket that was open and is gone, with the reason that it was closed for.
  constructor({ tell, received, lost }) {
    this.tell = tell;
    this.received = received;
    this.lost = lost;
    this.socket = null;
    this.connecting = null;
    this.used = false; // somebody speaks
    this.leaving = false; // the server has said that it goes away
    this.key = sessionStorage.getItem(KEY) ?? "";
  }

  use(key) {
    this.key = key;
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  }

  // The open socket and how long its handshake took, null if it was open before. Throws `Trouble`.
  async take() {
    clearTimeout(this.timer);
    if (this.socket?.open) return [this.socket, null];
    const socket = await (this.connecting ??= this.connect());
    return [socket, socket.handshakeMs];
  }

  // Be ready if that is possible; what is wrong is told.
  warm() {
    this.take().then(() => this.idle(), () => {});
  }

  // Nobody speaks now.
  idle() {
    if (!this.socket?.open) return; // what is due is another attempt
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (this.used ? this.idle() : this.rest()), IDLE_MS);
  }

  rest() {
    clearTimeout(this.timer);
    this.socket?.close();
    this.socket = null;
    this.tell({ state: "resting" });
  }

  // Go to a server that stays.
  leave() {
    this.leaving = false;
    this.socket?.close();
    this.socket = null;
    this.warm();
  }

  async connect() {
    this.tell({ state: "connecting" });
    try {
      const socket = await connect(this.key);
      socket.onmessage = (message) => this.received(message);
      socket.onclose = (why) => {
        this.socket = null;
        this.lost(why);
      };
      this.socket = socket;
      this.tell({ state: "open", ready: socket.ready });
      return socket;
    } catch (error) {
      const kind = error instanceof Trouble ? error.kind : "refused";
      if (kind === "key") this.use("");
      this.again(kind);
      throw error;
    } finally {
      this.connecting = null;
    }
  }

  again(kind) {
    const wait = AGAIN_MS[kind] ?? null;
    this.tell({ state: "trouble", kind, wait });
    clearTimeout(this.timer);
    if (wait !== null) this.timer = setTimeout(() => this.warm(), wait);
  }
}
