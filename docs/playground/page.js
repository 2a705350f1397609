"use strict";
// The page itself: read what is embedded, answer with both models, judge both, show each token's two log-probs.

const at = (id) => document.getElementById(id);
const embedded = (id) => at(id).textContent;

function tensorsOf(id) {
  const text = atob(embedded(id));
  return readSafetensors(Uint8Array.from(text, (character) => character.charCodeAt(0)).buffer);
}

const tokenizer = new Tokenizer(embedded("ranks"));
const about = JSON.parse(embedded("about"));
const world = new World(about.world);
const BEST_OF = [1, 2, 4, 8, 16];
const base = tensorsOf("base-weights");
const models = { base: new GPT(base, about.config), policy: null };
const policies = about.policies.map(() => null); // each is built when it is first asked
const judge = new RewardModel(descendant(base, tensorsOf("judge-weights"), "gpt."), about.config, about.pooling);

/** Let the policy of this place on the slider answer. */
function choose(place) {
  policies[place] ||= new GPT(descendant(base, tensorsOf(`policy-${place}-weights`)), about.config);
  models.policy = policies[place];
}

/** Numbers from 0 to 1 that a seed repeats (mulberry32). */
function randomFrom(seed) {
  return () => {
    seed = (seed + 1831565813) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** One answer of `writer` and what both rewards say of it; gold is null where the prompt is not of this world. */
function answerOf(writer, prompt, temperature, seed, asked) {
  const most = Math.min(about.max_new_tokens, about.config.context - prompt.length);
  const answer = models[writer].sample(prompt, { eos: tokenizer.eos, most, temperature, random: randomFrom(seed) });
  const ended = answer.at(-1) === tokenizer.eos;
  const gold = asked && world.gold(asked, tokenizer.decode(answer), ended);
  return { answer, ended, gold, learned: judge.score(prompt, answer) };
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** The best of n by the learned reward; the first of them keeps the seed of a single answer. */
function bestOf(writer, prompt, temperature, n, asked) {
  const drawn = Array.from({ length: n }, (_, k) => answerOf(writer, prompt, temperature, seed + 1000 * k, asked));
  const best = drawn.reduce((a, b) => (b.learned > a.learned ? b : a));
  const scores = { base: models.base.score(prompt, best.answer), policy: models.policy.score(prompt, best.answer) };
  return { ...best, ...scores, meanGold: asked && mean(drawn.map(({ gold }) => gold.reward)) };
}

/** Blue: likelier under the policy than under the base model. Orange: less likely. */
function colour(difference) {
  const strength = Math.min(Math.abs(difference) / 4, 1) * 0.75;
  return `rgba(${difference > 0 ? "86, 180, 233" : "230, 159, 0"}, ${strength.toFixed(3)})`;
}

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

function meter(words, value, share, className = "") {
  const bar = element("i", "");
  bar.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return element("div", `meter ${className}`, words, element("div", "", bar), element("b", "", value));
}

/** Both rewards of an answer, and the reason for each point of gold. */
function showRewards(writer, found, n, asked) {
  const rows = [];
  rows.push(meter("learned reward", found.learned.toFixed(2), (found.learned + 2) / 5.5));
  if (found.gold) rows.push(meter("gold reward", found.gold.reward.toFixed(2), found.gold.reward, "gold"));
  else rows.push(element("p", "quiet", "This prompt is not of this world, so nobody can say what gold would pay."));
  if (found.gold) {
    const reasons = world.reasons(asked, found.gold, found.ended).map(([points, most, words], i) => {
      const number = i < 4 ? `${points.toFixed(2)} of ${most.toFixed(2)}` : `\u00d7 ${points.toFixed(2)}`;
      return element("li", points < most - 1e-9 ? "lost" : "", element("span", "", number), element("span", "", words));
    });
    rows.push(element("ul", "reasons", ...reasons));
    if (n > 1) rows.push(element("p", "quiet", `The best of ${n} by the learned reward. Their mean gold is ${found.meanGold.toFixed(2)}.`));
  }
  at(`${writer}-rewards`).replaceChildren(...rows);
}

function show(writer, { answer, base, policy }) {
  at(`${writer}-answer`).replaceChildren(...answer.map((token, t) => {
    const span = element("span", "token", token === tokenizer.eos ? "[end]" : tokenizer.decode([token]));
    span.tabIndex = 0;
    span.style.background = colour(policy[t] - base[t]);
    const numbers = `${JSON.stringify(span.textContent)}: log p ${base[t].toFixed(2)} under the base model, ` +
      `${policy[t].toFixed(2)} under the policy (difference ${(policy[t] - base[t]).toFixed(2)})`;
    span.title = numbers;
    for (const event of ["mouseenter", "focus", "click"]) {
      span.addEventListener(event, () => (at("numbers").textContent = numbers));
    }
    return span;
  }));
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  at(`${writer}-sums`).textContent =
    `${answer.length} tokens. log p of the whole answer: ${sum(base).toFixed(1)} under the base model, ` +
    `${sum(policy).toFixed(1)} under the policy.`;
}

let seed = 1;
let shown = 0; // the last request wins where an earlier one is still being answered

function showSettings() {
  const choice = about.policies[Number(at("policy").value)];
  at("temperature-shown").textContent = Number(at("temperature").value).toFixed(1);
  at("best-of-shown").textContent = BEST_OF[Number(at("best-of").value)];
  at("policy-name").textContent = choice.name;
  at("policy-about").textContent = choice.about;
}

async function answerBoth() {
  showSettings();
  const turn = ++shown;
  const typed = at("prompt").value.trim();
  const prompt = tokenizer.encode(typed + "\n"); // a prompt of this world ends with a line break
  const room = about.config.context - prompt.length;
  if (!typed || room < 1) {
    at("status").textContent = typed
      ? `That prompt has ${prompt.length} tokens and the models read ${about.config.context}: shorten it.`
      : "Type a prompt first.";
    return;
  }
  choose(Number(at("policy").value));
  const n = BEST_OF[Number(at("best-of").value)];
  const started = performance.now();
  for (const writer of ["base", "policy"]) {
    if (n > 1) { // let the page breathe
      at("status").textContent = `${n} answers of the ${writer === "base" ? "base model" : "policy"} ...`;
      await new Promise((go) => setTimeout(go, 20));
      if (turn !== shown) return;
    }
    const asked = world.read(typed);
    const found = bestOf(writer, prompt, Number(at("temperature").value), n, asked);
    show(writer, found);
    showRewards(writer, found, n, asked);
  }
  at("status").textContent = `Seed ${seed}, ${Math.round(performance.now() - started)} ms, in this page alone.`;
}

/** A prompt, a seed and a policy at which there is something to see. */
function showExample(example) {
  at("prompt").value = example.prompt;
  at("policy").value = example.policy;
  at("temperature").value = 1;
  at("best-of").value = 0;
  seed = example.seed;
  at("lesson").textContent = example.lesson;
  answerBoth();
}

at("policy").max = about.policies.length - 1;
if (about.policies.length === 1) for (const part of document.querySelectorAll("#policy, .ends")) part.style.display = "none";
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  answerBoth();
});
for (const id of ["temperature", "best-of", "policy"]) at(id).addEventListener("input", answerBoth);
at("again").addEventListener("click", () => {
  seed += 1;
  answerBoth();
});
at("another").addEventListener("click", () => {
  const others = about.prompts;
  at("prompt").value = others[(others.indexOf(at("prompt").value) + 1) % others.length];
  answerBoth();
});
at("examples").append(...about.examples.map((example) => {
  const button = element("button", "", example.name);
  button.type = "button";
  button.addEventListener("click", () => showExample(example));
  return button;
}));
showExample(about.examples[0]);
