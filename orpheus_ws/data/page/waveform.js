// The sound of an utterance as it comes in, and how much of it was heard.
//
// Rule: what is drawn follows the samples; nothing moves by itself.

const PEAK_SAMPLES = 480; // 20 ms
const SHORTEST = 3; // seconds across
const GROWTH = 1.5;

export class Waveform {
  constructor(canvas) {
    this.canvas = canvas;
    this.clear();
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.peaks = [];
    this.samples = 0;
    this.peak = 0;
    this.played = 0;
    this.draw();
  }

  push(pcm) {
    for (const value of pcm) {
      this.peak = Math.max(this.peak, Math.abs(value));
      this.samples += 1;
      if (this.samples % PEAK_SAMPLES === 0) {
        this.peaks.push(this.peak / 32768);
        this.peak = 0;
      }
    }
    this.draw();
  }

  playedTo(samples) {
    this.played = samples;
    this.draw();
  }

  draw() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.paint();
    });
  }

  paint() {
    const { canvas, peaks } = this;
    const ratio = devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    pen.fillStyle = colour("--line");
    pen.fillRect(0, height / 2 - 0.5, width, 1);
    // The axis grows in steps, so that the picture does not slide with every chunk.
    let across = SHORTEST;
    while (across * 50 < peaks.length) across *= GROWTH;
    const bars = Math.floor(width / 4);
    const each = (across * 50) / bars;
    for (let bar = 0; bar * each < peaks.length; bar++) {
      const [from, to] = [Math.floor(bar * each), Math.max(bar * each + 1, (bar + 1) * each)];
      const loud = Math.max(...peaks.slice(from, Math.ceil(to)), 0);
      const tall = Math.max(2, Math.min(1, 1.3 * Math.sqrt(loud)) * height * 0.96);
      pen.fillStyle = from * PEAK_SAMPLES < this.played ? colour("--a") : colour("--pale");
      pen.beginPath();
      pen.roundRect(bar * 4, (height - tall) / 2, 2.4, tall, 1.2);
      pen.fill();
    }
  }
}
