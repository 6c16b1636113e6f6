// Words as they are typed.
//
// Rule: a word is sent when the white space after it is there, and is never sent twice: what was sent
// stays said, whatever is changed in the box afterwards.

export class Typist {
  // `begin` opens an utterance, `say` sends text, `flush` has it spoken, `warn` is told of changes to
  // what was sent.
  constructor({ begin, say, flush, warn }) {
    Object.assign(this, { begin, say, flush, warn });
    this.sent = "";
    this.open = false;
  }

  // What is in the box now was there before anybody typed.
  from(text) {
    this.sent = text;
    this.open = false;
  }

  typed(text) {
    if (!text.startsWith(this.sent)) {
      if (this.open) this.warn();
      this.sent = text.slice(0, lastSpace(text));
      return;
    }
    this.send(text, text.slice(0, lastSpace(text)));
    if (this.open && text.endsWith("\n")) this.flush();
  }

  // The rest, without white space after it; whether there is an utterance to end.
  finish(text) {
    if (text.startsWith(this.sent)) this.send(text, text);
    const { open } = this;
    this.open = false;
    return open;
  }

  ended() {
    this.open = false;
  }

  send(text, until) {
    const more = until.slice(this.sent.length);
    if (!more.trim() && !this.open) return;
    if (!more) return;
    if (!this.open) this.begin();
    this.open = true;
    this.sent = until;
    this.say(more);
  }
}

function lastSpace(text) {
  return text.search(/\S*$/);
}
