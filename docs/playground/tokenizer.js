"use strict";
// Byte-pair encoding as gpt/tokenizer.py sets it up: pieces by a pattern, then merges inside a piece.

// gpt/tokenizer.py's PATTERN in JavaScript's notation: letters, a digit, a newline, other signs, spaces.
const PIECES =
  /'(?:[sdmt]|ll|ve|re)| ?[\p{Alphabetic}\p{M}]+|\p{Nd}|\n| ?[^\s\p{Alphabetic}\p{M}\p{Nd}]+|[^\S\n]+(?!\S)|[^\S\n]+/gu;

class Tokenizer {
  /** ranks: the text of a .tiktoken file, one "base64(bytes) rank" a line. */
  constructor(ranks) {
    this.bytes = []; // id -> bytes as a string of characters 0 to 255
    this.ids = new Map(); // and back
    for (const line of ranks.trim().split("\n")) {
      const [token, rank] = line.split(" ");
      this.bytes[Number(rank)] = atob(token);
      this.ids.set(atob(token), Number(rank));
    }
    this.eos = this.bytes.length; // <|endoftext|> follows the ranks, then <|pad|>
  }

  /** text -> ids. */
  encode(text) {
    const utf8 = new TextEncoder();
    const ids = [];
    for (const [piece] of text.matchAll(PIECES)) {
      const parts = Array.from(utf8.encode(piece), (byte) => String.fromCharCode(byte));
      ids.push(...this.merged(parts).map((part) => this.ids.get(part)));
    }
    return ids;
  }

  /** Join the neighbours of the lowest rank until no two neighbours make a token. */
  merged(parts) {
    for (;;) {
      let best = Infinity;
      let at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ids.get(parts[i] + parts[i + 1]) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return parts;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  }

  /** ids -> text, without end-of-text and padding; broken UTF-8 becomes U+FFFD. */
  decode(ids) {
    const joined = ids.map((id) => this.bytes[id] ?? "").join("");
    return new TextDecoder().decode(Uint8Array.from(joined, (c) => c.charCodeAt(0)));
  }
}
