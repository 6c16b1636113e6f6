// What the page says to people: what is wrong, and what to do.
//
// Rule: every trouble has one sentence that says what happened and one that says what helps.

export function trouble(kind, { keyed = false } = {}) {
  switch (kind) {
    case "offline":
      return `The server at ${location.host} does not answer. Start it with “orpheus-ws serve”; this page keeps trying.`;
    case "full":
      return "All streams of the server are in use. This page takes the next one that comes free.";
    case "draining":
      return "The server is going away and takes nobody new. This page keeps trying.";
    case "dead":
      return "The server runs but cannot speak: its engine or codec has died. Restart it; its log says why.";
    case "key":
      return keyed
        ? "The server does not know this key, or the token has expired. Type another one."
        : "This server asks for a key. Type yours, or a token of “orpheus-ws token”.";
    case "refused":
      return `The server refused the socket. This page keeps trying; if auth.origins is set, it must list ${location.origin}.`;
    case "lost":
      return "The connection was lost in the middle of the sentence. You hear what had come; Speak says it again.";
    case "reload":
      return "The page was reloaded in the middle of a sentence, so the server stopped. Speak says it again.";
    case "sound":
      return "This browser cannot play the sound: it has no AudioWorklet here. Open the page by https or at localhost.";
    case "mute":
      return "This browser’s sound does not start: there is no audio device, or this page may not use it. Speak tries again.";
    case "nothing":
      return "There was nothing in this text to say. Write some words.";
    case "typed":
      return "What was sent cannot be unsaid. New words are spoken from here on.";
    default:
      return `The server ended the utterance (${kind}). Try again.`;
  }
}
