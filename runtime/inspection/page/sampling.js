// What top-k, top-p, min-p and temperature leave of a distribution: the default chain of runtime/engine/sampling.
"use strict";

// `tokens` are likeliest first, with `logprob`; they may be the beginning of a longer list, whose rest is the mass
// that is missing to 1. Gives the number kept, their probabilities, and whether the rest could have been kept too.
function sampled(tokens, { temperature, top_k, top_p, min_p }) {
  const logs = tokens.map((token) => token.logprob);
  const limit = top_k > 0 ? Math.min(top_k, logs.length) : logs.length;
  const gaps = logs.slice(0, limit).map((log) => log - logs[0]);
  const whole = Math.exp(-logs[0]); // all of the vocabulary, in units of the likeliest token
  let kept = limit;
  if (min_p > 0) kept = gaps.filter((gap) => gap >= Math.log(min_p)).length;
  let reached = top_p >= 1;
  if (top_p < 1) {
    const weights = gaps.map(Math.exp);
    const sum = weights.reduce((a, b) => a + b, 0);
    const mass = top_k > 0 && top_k <= logs.length ? sum : Math.max(whole, sum);
    let total = 0;
    for (let i = 0; i < weights.length; i++) {
      total += weights[i];
      if (total >= top_p * mass) {
        kept = Math.min(kept, i + 1);
        reached = true;
        break;
      }
    }
  }
  if (temperature === 0) return { kept: 1, probabilities: [1], complete: true };
  const cut = kept < logs.length || (top_k > 0 && top_k <= logs.length);
  const scaled = gaps.slice(0, kept).map((gap) => Math.exp(gap / temperature));
  const sum = scaled.reduce((a, b) => a + b, 0);
  return { kept, probabilities: scaled.map((x) => x / sum), complete: cut && reached };
}

function entropyBits(probabilities) {
  return probabilities.reduce((sum, p) => sum - (p > 0 ? p * Math.log2(p) : 0), 0);
}
