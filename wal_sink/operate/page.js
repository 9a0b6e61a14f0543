"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const NOT = "not recorded";
const MOST_ROWS = 40;
const STAGES = [
  ["staging", "staging"], ["queue", "queue"], ["checkpoint", "checkpoint"], ["fetch", "fetch"], ["send", "send"],
  ["other", "waits between attempts"], ["marker", "marker"],
];
const $ = (id) => document.getElementById(id);
const color = (number) => `var(--c${number % 8})`;
const names = data.sinks.map((sink) => sink.name);

function node(kind, attributes = {}, text = "") {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}
function shape(kind, attributes, tip) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (tip) { made.setAttribute("data-tip", tip); made.setAttribute("tabindex", "0"); }
  return made;
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOT;
  const size = Math.abs(seconds);
  if (size < 1) return `${Math.round(seconds * 1000)} ms`;
  if (size < 120) return `${seconds.toFixed(size < 10 ? 1 : 0)} s`;
  if (size < 7200) return `${Math.round(seconds / 60)} min`;
  return size < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}
function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${at ? count.toFixed(count < 10 ? 1 : 0) : count} ${units[at]}`;
}
const whole = (count) => count.toLocaleString("en");
const clock = (ms) => ms === null ? "?" : new Date(ms).toISOString().slice(5, 16).replace("T", " ");

function nice(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most);
}
/* An empty plot with a scale on its left; what is drawn lies right of `left` and above `floor`. */
function plot(id, height, most, format) {
  const place = $(id), width = Math.max(220, place.clientWidth), left = 58, floor = height - 20;
  place.textContent = "";
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  const top = nice(most), y = (value) => floor - (value / top) * (floor - 8);
  for (const part of [0, 0.5, 1]) {
    picture.append(shape("line", { x1: left, x2: width, y1: y(top * part), y2: y(top * part), class: "grid" }));
    const label = shape("text", { x: left - 6, y: y(top * part) + 4, "text-anchor": "end" });
    label.textContent = format(top * part);
    picture.append(label);
  }
  place.append(picture);
  return { picture, width, left, floor, y };
}
function nothing(id, text) { $(id).textContent = ""; $(id).append(node("p", {}, text)); }
function below(at, x, text, anchor) {
  const label = shape("text", { x, y: at.floor + 15, "text-anchor": anchor });
  label.textContent = text;
  at.picture.append(label);
}
function legend(id, entries) {
  $(id).textContent = "";
  for (const [name, fill] of entries) {
    const entry = node("span"), mark = node("i");
    mark.style.background = fill;
    entry.append(mark, document.createTextNode(name));
    $(id).append(entry);
  }
}
function ends(at, texts) {
  below(at, at.left, texts[0], "start");
  if (texts.length > 1) below(at, at.width - 2, texts[1], "end");
}

function about() {
  const shown = data.shown === data.held ? `${whole(data.held)} batches` :
    `the newest ${whole(data.shown)} of ${whole(data.held)} batches`;
  const spark = data.spark === null ? `Spark's newest commit is unknown (${data.spark_note})` :
    `Spark completed batches through ${data.spark}`;
  $("about").textContent = `${data.wal}, looked at ${data.looked_at}: ${shown}. ${spark}.`;
}
function cards() {
  if (!data.sinks.length) nothing("sinks", "No sink is registered: nothing is delivered.");
  for (const sink of data.sinks) {
    const card = node("div", { class: "card" });
    const lag = sink.retired ? "retired" : sink.lag === null ? "unknown" : duration(sink.lag);
    card.append(node("b", {}, sink.name));
    card.append(node("span", { class: sink.lag === null && !sink.retired ? "lag bad" : "lag" }, lag));
    const behind = sink.behind === null ? "" : `, ${whole(sink.behind)} behind Spark`;
    card.append(node("small", {}, `lag; ${whole(sink.pending)} batches pending${behind}`));
    card.append(node("small", {}, `${sink.kind}, ${sink.state}, through batch ${sink.through}`));
    if (sink.letters) card.append(node("small", {}, `${whole(sink.letters)} dead letters`));
    if (sink.note) card.append(node("small", { class: "bad" }, sink.note));
    if (sink.error) card.append(node("small", { class: "bad" }, sink.error));
    $("sinks").append(card);
  }
}
function lag() {
  const now = Date.parse(data.looked_at), staged = data.batches.filter((batch) => batch.at !== null);
  if (!staged.length || !names.length) return nothing("lag", "No batch is held.");
  legend("lag-legend", names.map((name, number) => [name, color(number)]));
  const points = names.map((name) => {
    const of = new Map(data.deliveries[name].map((each) => [each.id, each.lag]));
    const through = data.sinks[names.indexOf(name)];
    return staged.filter((batch) => of.get(batch.id) !== null || batch.id > through.through).map((batch) => {
      const found = of.get(batch.id);
      return { batch, open: found === null, lag: Math.max(0, found === null ? (now - batch.at) / 1000 : found) };
    });
  });
  const at = plot("lag", 210, Math.max(...points.flat().map((each) => each.lag), 0.001), duration);
  const first = staged[0].at, span = Math.max(1, staged[staged.length - 1].at - first);
  const x = (batch) => at.left + 6 + ((batch.at - first) / span) * (at.width - at.left - 14);
  points.forEach((list, number) => {
    const way = list.filter((each) => !each.open).map((each) => `${x(each.batch)},${at.y(each.lag)}`).join(" ");
    at.picture.append(shape("polyline", { points: way, fill: "none", stroke: color(number), "stroke-width": 1.5 }));
    for (const each of list) {
      const tip = `${names[number]}, batch ${each.batch.id}\n${each.open ? "lacks it; age" : "lag"} ` +
        `${duration(each.lag)}\nstaged ${clock(each.batch.at)}`;
      const look = each.open ? { fill: "var(--card)", stroke: color(number), "stroke-width": 2 } : { fill: color(number) };
      at.picture.append(shape("circle", { cx: x(each.batch), cy: at.y(each.lag), r: 4, ...look }, tip));
    }
  });
  ends(at, [clock(first), clock(staged[staged.length - 1].at)]);
}
let picked = Math.max(0, data.sinks.findIndex((sink) => !sink.retired));
function picks() {
  names.forEach((name, number) => {
    const button = node("button", { type: "button", "aria-pressed": String(number === picked) }, name);
    button.addEventListener("click", () => {
      picked = number;
      [...$("picks").children].forEach((each, at) => each.setAttribute("aria-pressed", String(at === picked)));
      stages();
    });
    $("picks").append(button);
  });
}
function stages() {
  const of = new Map((data.deliveries[names[picked]] || []).map((each) => [each.id, each]));
  const rows = data.batches.slice(-MOST_ROWS).map((batch) => {
    const its = of.get(batch.id) || {};
    const other = its.delivery === null || its.delivery === undefined ? null :
      Math.max(0, its.delivery - its.fetch - its.send);
    return { batch, its, times: { ...its, staging: batch.staging, other } };
  });
  const known = rows.filter((row) => STAGES.some(([key]) => row.times[key] > 0));
  if (!known.length) return nothing("stages", "No times are recorded.");
  legend("stage-legend", STAGES.map(([, name], number) => [name, color(number)]));
  const total = (row) => STAGES.reduce((sum, [key]) => sum + (row.times[key] || 0), 0);
  const each = 17, height = rows.length * each + 24, place = $("stages");
  const width = Math.max(220, place.clientWidth), left = 58, top = nice(Math.max(...rows.map(total), 0.001));
  place.textContent = "";
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  const long = (seconds) => (seconds / top) * (width - left - 30);
  for (const part of [0, 0.5, 1]) {
    const x = left + long(top * part);
    picture.append(shape("line", { x1: x, x2: x, y1: 0, y2: height - 20, class: "grid" }));
    const label = shape("text", { x, y: height - 6, "text-anchor": "middle" });
    label.textContent = duration(top * part);
    picture.append(label);
  }
  rows.forEach((row, number) => {
    let x = left;
    const label = shape("text", { x: left - 6, y: number * each + 12, "text-anchor": "end" });
    label.textContent = row.batch.id;
    picture.append(label);
    STAGES.forEach(([key, name], stage) => {
      const seconds = row.times[key];
      if (!(seconds > 0)) return;
      const slowest = key === "staging" ? row.batch.slowest : key === "send" || key === "fetch" ? row.its.slowest : null;
      const tip = `batch ${row.batch.id}, ${name}: ${duration(seconds)}` + (slowest ? `\nslowest: ${slowest}` : "") +
        `\nof ${duration(total(row))} in all`;
      picture.append(shape("rect", { x, y: number * each + 2, width: Math.max(1, long(seconds)), height: each - 5,
        fill: color(stage) }, tip));
      x += long(seconds);
    });
  });
  place.append(picture);
}
/* Columns of equal width; each is a list of parts that stand on each other. */
function columns(id, list, format, labels) {
  const at = plot(id, 170, Math.max(...list.map((each) => each.reduce((sum, part) => sum + part.value, 0))), format);
  const step = (at.width - at.left - 6) / list.length;
  list.forEach((parts, number) => {
    let under = 0;
    for (const part of parts) {
      if (part.value > 0) {
        const y = at.y(under + part.value);
        at.picture.append(shape("rect", { x: at.left + 4 + number * step, y, width: Math.max(1, step - (step > 4 ? 1.5 : 0)),
          height: Math.max(1, at.y(under) - y), fill: part.fill }, part.tip));
      }
      under += part.value;
    }
  });
  ends(at, labels);
}
function rows() {
  if (!data.batches.length) return nothing("rows", "No batch is held.");
  const list = data.batches.map((batch) => [{ value: batch.rows, fill: color(0), tip: `batch ${batch.id}: ` +
    `${whole(batch.rows)} rows, ${bytes(batch.bytes)}\n${whole(batch.segments)} segments` +
    (batch.attempts > 1 ? `\nstaged ${batch.attempts} times` : "") + `\nstaged ${clock(batch.at)}` }]);
  columns("rows", list, (value) => whole(Math.round(value)), batchEnds());
  const sum = (of) => data.batches.reduce((total, batch) => total + of(batch), 0);
  const timed = data.batches.filter((batch) => batch.at !== null);
  const span = timed.length > 1 ? (timed[timed.length - 1].at - timed[0].at) / 1000 : 0;
  const rate = span > 0 ? `, ${whole(Math.round(sum((batch) => batch.rows) / span))} rows a second on average` : "";
  $("throughput").textContent = `Rows of each batch: ${whole(sum((batch) => batch.rows))} rows and ` +
    `${bytes(sum((batch) => batch.bytes))} in these batches${rate}.`;
}
function batchEnds() {
  return [`batch ${data.batches[0].id}`, `batch ${data.batches[data.batches.length - 1].id}`];
}
function sizes() {
  if (!data.sizes.length) return nothing("sizes", "No segment is held.");
  const list = data.sizes.map(([from, count]) => [{ value: count, fill: color(2),
    tip: `${whole(count)} segments\nof ${bytes(from)} to ${bytes(from * 2)}` }]);
  const last = data.sizes[data.sizes.length - 1][0] * 2;
  columns("sizes", list, (value) => whole(Math.round(value)), [bytes(data.sizes[0][0]), bytes(last)]);
}
function retries() {
  const some = names.some((name) => data.deliveries[name].some((each) => each.retries > 0));
  if (!some) return nothing("retries", "No retry is recorded.");
  legend("retry-legend", names.map((name, number) => [name, color(number)]));
  const list = data.batches.map((batch, at) => names.map((name, number) => {
    const count = data.deliveries[name][at].retries || 0;
    return { value: count, fill: color(number), tip: `${name}, batch ${batch.id}: ${whole(count)} retries` };
  }));
  columns("retries", list, (value) => whole(Math.ceil(value)), batchEnds());
}
function letters() {
  const ids = [...new Set(names.flatMap((name) => data.letters[name].map(([id]) => id)))].sort((a, b) => a - b);
  if (!ids.length) return nothing("letters", "There is no dead letter.");
  legend("letter-legend", names.map((name, number) => [name, color(number)]));
  const of = names.map((name) => new Map(data.letters[name]));
  const list = ids.map((id) => names.map((name, number) => ({ value: of[number].get(id) || 0, fill: color(number),
    tip: `${name}, batch ${id}: ${whole(of[number].get(id) || 0)} dead letters` })));
  columns("letters", list, (value) => whole(Math.ceil(value)), [`batch ${ids[0]}`, `batch ${ids[ids.length - 1]}`]);
}
function tips() {
  const tip = $("tip");
  const show = (event) => {
    const text = event.target.getAttribute && event.target.getAttribute("data-tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = event.target.getBoundingClientRect(), own = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left + box.width / 2, innerWidth - own.width - 4))}px`;
    tip.style.top = `${box.top > own.height + 8 ? box.top - own.height - 6 : box.bottom + 6}px`;
  };
  for (const kind of ["pointerover", "pointerdown", "focusin"]) document.addEventListener(kind, show);
}
function draw() { lag(); stages(); rows(); sizes(); retries(); letters(); }

about(); cards(); picks(); draw(); tips();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
