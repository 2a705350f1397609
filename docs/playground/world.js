"use strict";
// The gold reward of the reviews, the twin of data/worlds/reviews.py, and its reasons in words.

class World {
  /** lists: names, items, positive, negative, neutral, closings, rude phrases and the prompts' templates. */
  constructor(lists) {
    this.lists = lists;
    const known = { name: lists.names, adjective: lists.adjectives, item: lists.items };
    this.patterns = lists.templates.map((template) => {
      const escaped = template.trim().replace(/[.?]/g, "\\$&");
      return new RegExp("^" + escaped.replace(/\{(\w+)\}/g, (_, key) => `(?<${key}>${known[key].join("|")})`) + "$");
    });
    this.rude = new RegExp(`(?<![\\p{L}\\p{N}_])(?:${lists.rude.join("|")})(?![\\p{L}\\p{N}_])`, "gu");
  }

  /** Name, adjective and item of a prompt of this world, or null for any other text. */
  read(prompt) {
    for (const pattern of this.patterns) {
      const match = prompt.trim().match(pattern);
      if (match) return match.groups;
    }
    return null;
  }

  /** The five parts, each from 0 to 1, the reward, and what was counted. `ended`: the writer stopped by itself. */
  gold(asked, answer, ended) {
    const { items, positive, negative, neutral, closings } = this.lists;
    const text = answer.toLowerCase().split(/\s+/).filter(Boolean).join(" ");
    const words = text.match(/[\p{L}\p{N}_]+/gu) || [];
    const sentences = text.split(/[.?!]/).map((piece) => piece.trim()).filter((piece) => /[\p{L}\p{N}_]/u.test(piece));
    const all = (list) => words.filter((word) => list.includes(word));
    const [kind, unkind, named] = [all(positive), all(negative), all(items)];
    const opinions = words.filter((word) => [positive, negative, neutral].some((list) => list.includes(word)));
    const share = (kind.length + 0.5) / (kind.length + unkind.length + 1);
    const right = named.filter((item) => item === asked.item);
    const name = asked.name.toLowerCase();
    const greets = sentences.length > 0 && (["hi", "hello"].some((hi) => sentences[0] === `${hi} ${name}` || sentences[0].startsWith(`${hi} ${name},`)));
    const closes = closings.includes(sentences.at(-1));
    const rude = text.match(this.rude) || [];
    const twice = (list) => [...new Set(list.filter((entry, i) => list.indexOf(entry) !== i))];
    const repeated = sentences.length - new Set(sentences).size + opinions.length - new Set(opinions).size;
    const excess = Math.max(sentences.length - 5, 0) + Math.max(kind.length - 3, 0);
    const clip = (v) => Math.min(Math.max(v, 0), 1);
    const judged = opinions.length > 0;
    const parts = {
      sent: judged ? clip((share - 0.17) / 0.66) : 0,
      topic: judged && named.length ? right.length / named.length : 0,
      polite: Math.max(0.5 * greets + 0.5 * closes - 0.5 * rude.length, 0),
      form: Number(ended && /[.?!]$/.test(answer)),
      qual: Math.max(1 - 0.25 * repeated - 0.25 * excess, 0),
    };
    const content = 0.3 * parts.sent + 0.3 * parts.topic + 0.25 * parts.polite + 0.15 * parts.form;
    const counted = { kind, unkind, named, right, greets, closes, rude, judged, sentences, twice: [...twice(sentences), ...twice(opinions)] };
    return { ...parts, reward: content * (0.3 + 0.7 * parts.qual), counted };
  }

  /** Where each point came from: [points, points that could be had, words]. */
  reasons(asked, gold, ended) {
    const { kind, unkind, named, greets, closes, rude, judged, sentences, twice } = gold.counted;
    const list = (words) => [...new Set(words)].join(", ");
    const care = 0.3 + 0.7 * gold.qual;
    const wrong = named.filter((item) => item !== asked.item);
    const opinion = [kind.length && `kind: ${list(kind)}`, unkind.length && `unkind: ${list(unkind)}`].filter(Boolean);
    const manners = [greets ? `greets ${asked.name}` : `does not begin by greeting ${asked.name}`,
      closes ? "ends with thanks or good wishes" : "has no friendly end", rude.length && `is rude: ${list(rude)}`];
    const topic = !named.length ? `names no thing at all, and the ${asked.item} was asked about`
      : wrong.length ? `speaks of the ${list(wrong)}, and the ${asked.item} was asked about` : `speaks of the ${asked.item}, as asked`;
    const over = [twice.length && `says twice: ${twice.join("; ")}`, sentences.length > 5 && `${sentences.length} sentences, more than 5`,
      kind.length > 3 && `${kind.length} kind words, more than 3`].filter(Boolean);
    return [
      [0.3 * gold.sent, 0.3, judged ? opinion.join("; ") || "neither kind nor unkind" : "no opinion, so no review"],
      [0.3 * gold.topic, 0.3, judged ? topic : "no opinion, so about nothing"],
      [0.25 * gold.polite, 0.25, manners.filter(Boolean).join("; ")],
      [0.15 * gold.form, 0.15, gold.form ? "ends by itself, on a full stop" : ended ? "stops without a full stop" : "never comes to an end"],
      [care, 1, over.length ? `all of it counts ${care.toFixed(2)} times, because it ${over.join("; ")}` : "no repetition: all of it counts"],
    ];
  }
}
