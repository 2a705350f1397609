"use strict";
// The page itself: read what is embedded, answer with both models, show each token's two log-probs.

const embedded = (id) => document.getElementById(id).textContent;

function bufferOf(id) {
  const text = atob(embedded(id));
  return Uint8Array.from(text, (character) => character.charCodeAt(0)).buffer;
}

const tokenizer = new Tokenizer(embedded("ranks"));
const about = JSON.parse(embedded("about"));
const models = {
  base: new GPT(readSafetensors(bufferOf("base-weights")), about.config),
  policy: new GPT(readSafetensors(bufferOf("policy-weights")), about.config),
};

/** Numbers from 0 to 1 that a seed repeats (mulberry32). */
function randomFrom(seed) {
  return () => {
    seed = (seed + 1831565813) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** One answer of `writer`, and what both models think of each of its tokens. */
function answerOf(writer, prompt, temperature, seed) {
  const most = Math.min(about.max_new_tokens, about.config.context - prompt.length);
  const answer = models[writer].sample(prompt, {
    eos: tokenizer.eos, most, temperature, random: randomFrom(seed),
  });
  return { answer, base: models.base.score(prompt, answer), policy: models.policy.score(prompt, answer) };
}

/** Blue: likelier under the policy than under the base model. Orange: less likely. */
function colour(difference) {
  const strength = Math.min(Math.abs(difference) / 4, 1) * 0.75;
  return `rgba(${difference > 0 ? "86, 180, 233" : "230, 159, 0"}, ${strength.toFixed(3)})`;
}

function show(writer, { answer, base, policy }) {
  const place = document.getElementById(`${writer}-answer`);
  place.replaceChildren(...answer.map((token, t) => {
    const span = document.createElement("span");
    span.textContent = token === tokenizer.eos ? "[end]" : tokenizer.decode([token]);
    span.className = "token";
    span.tabIndex = 0;
    span.style.background = colour(policy[t] - base[t]);
    const numbers = `${JSON.stringify(span.textContent)}: log p ${base[t].toFixed(2)} under the base model, ` +
      `${policy[t].toFixed(2)} under the policy (difference ${(policy[t] - base[t]).toFixed(2)})`;
    span.title = numbers;
    for (const event of ["mouseenter", "focus", "click"]) {
      span.addEventListener(event, () => (document.getElementById("numbers").textContent = numbers));
    }
    return span;
  }));
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  document.getElementById(`${writer}-sums`).textContent =
    `${answer.length} tokens. log p of the whole answer: ${sum(base).toFixed(1)} under the base model, ` +
    `${sum(policy).toFixed(1)} under the policy.`;
}

let seed = 1;

function answerBoth() {
  const typed = document.getElementById("prompt").value.trim();
  const status = document.getElementById("status");
  const prompt = tokenizer.encode(typed + "\n"); // a prompt of this world ends with a line break
  const room = about.config.context - prompt.length;
  if (!typed || room < 1) {
    status.textContent = typed
      ? `That prompt has ${prompt.length} tokens and the models read ${about.config.context}: shorten it.`
      : "Type a prompt first.";
    return;
  }
  const temperature = Number(document.getElementById("temperature").value);
  const started = performance.now();
  for (const writer of ["base", "policy"]) show(writer, answerOf(writer, prompt, temperature, seed));
  status.textContent = `Seed ${seed}, ${Math.round(performance.now() - started)} ms, in this page alone.`;
}

document.getElementById("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  answerBoth();
});
document.getElementById("again").addEventListener("click", () => {
  seed += 1;
  answerBoth();
});
document.getElementById("another").addEventListener("click", () => {
  const others = about.prompts;
  const field = document.getElementById("prompt");
  field.value = others[(others.indexOf(field.value) + 1) % others.length];
  answerBoth();
});
document.getElementById("prompt").value = about.prompts[0];
answerBoth();
