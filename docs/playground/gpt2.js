"use strict";
// GPT-2 in JavaScript: the twin of gpt/model.py for one row, one token at a time, with a cache of keys
// and values. Shapes: D embedding, H heads, d = D / H, V vocabulary. Everything is float32.

class GPT {
  /** weights: name -> Float32Array, named and shaped as in gpt/model.py; config: its sizes. */
  constructor(weights, config) {
    this.weights = weights;
    this.config = config;
    this.restart();
  }

  /** Forget the row. */
  restart() {
    this.cache = Array.from({ length: this.config.n_layer }, () => ({ keys: [], values: [] }));
    this.length = 0;
  }

  /** Read one more token; the log-probabilities (V) of the next one at temperature 1. */
  read(token) {
    return logSoftmax(matrixVector(this.weights["wte.weight"], this.hidden(token))); // the tied head
  }

  /** Read one more token; what the last LayerNorm makes of it, (D). */
  hidden(token) {
    const { n_embd: D, n_layer, context } = this.config;
    if (this.length === context) throw new RangeError(`the model has ${context} positions`);
    const x = new Float32Array(D);
    for (let i = 0; i < D; i++) {
      x[i] = this.weights["wte.weight"][token * D + i] + this.weights["wpe.weight"][this.length * D + i];
    }
    for (let layer = 0; layer < n_layer; layer++) {
      add(x, this.attention(this.norm(x, `h.${layer}.ln_1`), layer));
      add(x, this.mlp(this.norm(x, `h.${layer}.ln_2`), layer));
    }
    this.length++;
    return this.norm(x, "ln_f");
  }

  /** softmax(q K^T / sqrt(d)) V for each head, over this token and all before it. */
  attention(x, layer) {
    const { n_embd: D, n_head: H } = this.config;
    const d = D / H;
    const { keys, values } = this.cache[layer];
    const qkv = this.linear(x, `h.${layer}.attn.c_attn`); // (3 D)
    keys.push(qkv.subarray(D, 2 * D));
    values.push(qkv.subarray(2 * D));
    const merged = new Float32Array(D);
    for (let from = 0; from < D; from += d) {
      const scores = Float32Array.from(keys, (key) => {
        let score = 0;
        for (let i = from; i < from + d; i++) score += qkv[i] * key[i];
        return score / Math.sqrt(d);
      });
      const weights = logSoftmax(scores).map(Math.exp);
      values.forEach((value, t) => {
        for (let i = from; i < from + d; i++) merged[i] += weights[t] * value[i];
      });
    }
    return this.linear(merged, `h.${layer}.attn.c_proj`);
  }

  /** D -> 4 D -> D with the tanh form of GELU. */
  mlp(x, layer) {
    const inner = this.linear(x, `h.${layer}.mlp.c_fc`);
    const gelu = (v) => 0.5 * v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3)));
    return this.linear(inner.map(gelu), `h.${layer}.mlp.c_proj`);
  }

  linear(x, name) {
    const y = matrixVector(this.weights[`${name}.weight`], x);
    add(y, this.weights[`${name}.bias`]);
    return y;
  }

  /** Layer normalisation (Ba et al. 2016): mean 0 and deviation 1 over D, then gain and bias. */
  norm(x, name) {
    const mean = x.reduce((sum, v) => sum + v, 0) / x.length;
    const variance = x.reduce((sum, v) => sum + (v - mean) ** 2, 0) / x.length;
    const [gain, bias] = [this.weights[`${name}.weight`], this.weights[`${name}.bias`]];
    return x.map((v, i) => ((v - mean) / Math.sqrt(variance + 1e-5)) * gain[i] + bias[i]);
  }

  /** What the prompt is followed by: log-probabilities of the first token of the answer. */
  readAll(tokens) {
    this.restart();
    return tokens.map((token) => this.read(token)).at(-1);
  }

  /** log p of each token of an answer to this prompt. */
  score(prompt, answer) {
    let next = this.readAll(prompt);
    return answer.map((token, t) => {
      const found = next[token];
      if (t + 1 < answer.length) next = this.read(token);
      return found;
    });
  }

  /** Sample an answer up to `eos` or `most` tokens; `random` gives numbers from 0 to 1. */
  sample(prompt, { eos, most, temperature, random }) {
    const answer = [];
    let next = this.readAll(prompt);
    for (;;) {
      const token = temperature === 0 ? likeliest(next) : drawn(next, temperature, random());
      answer.push(token);
      if (token === eos || answer.length === most) return answer;
      next = this.read(token);
    }
  }
}

/** A GPT with a scalar head: the twin of reward_model/scalar_head.py. */
class RewardModel {
  constructor(weights, config, pooling) {
    const own = Object.entries(weights).filter(([name]) => name.startsWith("gpt."));
    this.gpt = new GPT(Object.fromEntries(own.map(([name, values]) => [name.slice(4), values])), config);
    Object.assign(this, { head: weights["head.weight"], bias: weights["head.bias"][0] });
    Object.assign(this, { mean: weights.mean[0], std: weights.std[0], pooling });
  }

  /** The normalised score of an answer to this prompt: of its last token, or the mean over its tokens. */
  score(prompt, answer) {
    this.gpt.restart();
    prompt.forEach((token) => this.gpt.hidden(token));
    const scores = answer.map((token) => matrixVector(this.head, this.gpt.hidden(token))[0] + this.bias);
    const sum = scores.reduce((total, v) => total + v, 0);
    return ((this.pooling === "mean_score" ? sum / scores.length : scores.at(-1)) - this.mean) / this.std;
  }
}

/** W (rows, columns), stored row by row, times x (columns). */
function matrixVector(W, x) {
  const columns = x.length;
  const y = new Float32Array(W.length / columns);
  for (let row = 0, at = 0; row < y.length; row++) {
    let sum = 0;
    for (let i = 0; i < columns; i++, at++) sum += W[at] * x[i];
    y[row] = sum;
  }
  return y;
}

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
}

function logSoftmax(logits) {
  const largest = logits.reduce((a, b) => Math.max(a, b));
  const sum = logits.reduce((total, v) => total + Math.exp(v - largest), 0);
  return logits.map((v) => v - largest - Math.log(sum));
}

function likeliest(logProbs) {
  return logProbs.indexOf(logProbs.reduce((a, b) => Math.max(a, b)));
}

/** The first token at which the probabilities, summed up, pass `uniform`. */
function drawn(logProbs, temperature, uniform) {
  const probabilities = logSoftmax(logProbs.map((v) => v / temperature)).map(Math.exp);
  let sum = 0;
  const found = probabilities.findIndex((p) => (sum += p) > uniform);
  return found < 0 ? likeliest(logProbs) : found;
}

/** A safetensors file -> name -> Float32Array or Int8Array; bfloat16 is widened. */
function readSafetensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const tensors = {};
  for (const [name, { dtype, data_offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const bytes = buffer.slice(8 + size + data_offsets[0], 8 + size + data_offsets[1]);
    if (dtype === "BF16") tensors[name] = widened(new Uint16Array(bytes));
    else tensors[name] = dtype === "I8" ? new Int8Array(bytes) : new Float32Array(bytes);
  }
  return tensors;
}

/** bfloat16 is the upper half of float32. */
function widened(halves) {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}

/** A descendant of `base`: the change of each tensor in 8 bits with a scale a row, in full, or as B A. */
function descendant(base, stored, prefix = "") {
  const weights = {};
  for (const [name, own] of Object.entries(base)) weights[prefix + name] = own;
  for (const [name, values] of Object.entries(stored)) {
    if (name.endsWith(".scale") || name.endsWith(".B")) continue;
    const target = name.replace(/\.A$/, "");
    const before = weights[target];
    let change = values;
    if (name.endsWith(".A")) change = product(stored[name.replace(/A$/, "B")], values, before.length);
    const scale = stored[`${name}.scale`];
    const columns = scale && values.length / scale.length;
    weights[target] = Float32Array.from(change, (v, i) =>
      Math.fround((before ? before[i] : 0) + Math.fround(scale ? v * scale[Math.floor(i / columns)] : v)));
  }
  return weights;
}

/** B (out, r) times A (r, in), of `size` numbers in all. */
function product(B, A, size) {
  const rank = Math.round(Math.sqrt((B.length * A.length) / size));
  const inner = A.length / rank;
  return Float32Array.from({ length: size }, (_, at) => {
    const [row, column] = [Math.floor(at / inner), at % inner];
    let sum = 0;
    for (let k = 0; k < rank; k++) sum += B[row * rank + k] * A[k * inner + column];
    return sum;
  });
}
