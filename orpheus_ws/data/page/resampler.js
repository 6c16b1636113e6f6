// From one sample rate to another, chunk by chunk.
//
// Rule: however the samples are cut into chunks, the same samples come out; nothing here knows audio
// devices. A windowed sinc: pass band to 0.94 of the lower Nyquist frequency, Kaiser window of 80 dB.

const HALF = 20; // zero crossings of the sinc on each side
const PASS = 0.94; // of the lower Nyquist frequency
const BETA = 7.86; // Kaiser's formula for 80 dB: 0.1102 (80 - 8.7)

export class Resampler {
  // `from` and `to` are whole numbers of samples a second.
  constructor(from, to) {
    const shared = divisor(from, to);
    this.up = to / shared;
    this.down = from / shared;
    this.identical = from === to;
    const cutoff = PASS * Math.min(1, to / from);
    this.reach = Math.ceil(HALF / cutoff); // samples on each side that an output is made of
    this.phases = this.identical ? [] : kernels(this.up, this.reach, cutoff);
    this.pending = new Float32Array(this.reach - 1); // silence before the first sample
    this.first = -(this.reach - 1); // number of the first pending sample
    this.taken = 0;
    this.given = 0;
  }

  // The samples that are certain by now.
  push(samples) {
    if (this.identical) return samples;
    this.taken += samples.length;
    return this.run(samples, Infinity);
  }

  // What is left at the end: all in all `ceil(samples * to / from)` have come out then.
  finish() {
    if (this.identical) return new Float32Array(0);
    return this.run(new Float32Array(this.reach), Math.ceil((this.taken * this.up) / this.down));
  }

  run(samples, most) {
    const all = new Float32Array(this.pending.length + samples.length);
    all.set(this.pending);
    all.set(samples, this.pending.length);
    const end = this.first + all.length; // number of the first sample that is not there
    const certain = Math.ceil(((end - this.reach) * this.up) / this.down);
    const out = new Float32Array(Math.max(0, Math.min(certain, most) - this.given));
    for (let n = 0; n < out.length; n++) out[n] = this.at(this.given + n, all);
    this.given += out.length;
    const next = Math.floor((this.given * this.down) / this.up) - this.reach + 1;
    const keep = Math.max(0, Math.min(all.length, next - this.first));
    this.pending = all.slice(keep);
    this.first += keep;
    return out;
  }

  at(number, all) {
    const place = number * this.down;
    const kernel = this.phases[place % this.up];
    const start = Math.floor(place / this.up) - this.reach + 1 - this.first;
    let sum = 0;
    for (let k = 0; k < kernel.length; k++) sum += kernel[k] * all[start + k];
    return sum;
  }
}

// A kernel for each place that an output can have between two samples; each adds up to 1.
function kernels(up, reach, cutoff) {
  return Array.from({ length: up }, (_, phase) => {
    const kernel = new Float64Array(2 * reach);
    let total = 0;
    for (let k = 0; k < kernel.length; k++) {
      const distance = k - reach + 1 - phase / up;
      kernel[k] = sinc(distance * cutoff) * kaiser(distance / reach);
      total += kernel[k];
    }
    return kernel.map((value) => value / total);
  });
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

function kaiser(x) {
  return Math.abs(x) >= 1 ? 0 : bessel(BETA * Math.sqrt(1 - x * x)) / bessel(BETA);
}

// The modified Bessel function of order 0, by its series.
function bessel(x) {
  let term = 1;
  let sum = 1;
  for (let k = 1; term > 1e-12 * sum; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

function divisor(a, b) {
  return b === 0 ? a : divisor(b, a % b);
}
