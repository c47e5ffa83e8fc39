"use strict";
// What the page holds: slices as columns, the rows that they lie in, who waits for whom, what a search finds.
const $ = id => document.getElementById(id);
const data = JSON.parse(Array.from(document.getElementsByClassName("data"), part => part.textContent).join(""));
const columns = data.slices, count = columns.lane.length;
const begin = new Float64Array(count), end = new Float64Array(count);
for (let i = 0, at = 0; i < count; i++) { at += columns.begin[i]; begin[i] = at; end[i] = at + columns.length[i]; }
const kindOf = i => data.kinds[columns.kind[i]], nameOf = i => data.names[columns.name[i]];
const lineOf = i => columns.line[i] < 0 ? null : data.lines[columns.line[i]];
const isWork = kind => !["wait", "give", "sync", "record", "ask", "memory"].includes(kind);
const KINDS = { kernel: "kernel", copy_in: "copy to the device", copy_out: "copy to the host", copy: "copy between devices", fill: "fill",
  host_call: "host function", collective: "collective", graph: "graph", wait: "a stream waits", give: "call", sync: "the host waits", memory: "memory call", ask: "query" };

const whole = (() => {
  let from = Infinity, to = -Infinity;
  for (let i = 0; i < count; i++) { if (begin[i] < from) from = begin[i]; if (end[i] > to) to = end[i]; }
  for (const r of data.ranges) { from = Math.min(from, r.begin); to = Math.max(to, r.end); }
  return count || data.ranges.length ? [from, Math.max(to, from + 1)] : [0, 1];
})();

// -- rows: top to bottom the program's threads, then each device's streams, copy engines and memory
const rows = [], rowOf = new Int32Array(count).fill(-1), HEADS = 26;
const plural = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

function addRow(type, height, more) {
  const last = rows[rows.length - 1], row = { type, height, y: last ? last.y + last.height : 0, ...more };
  rows.push(row);
  return row;
}

function perLane() {
  const lists = data.lanes.map(() => []);
  for (let i = 0; i < count; i++) if (columns.length[i] > 0 || kindOf(i) !== "wait") lists[columns.lane[i]].push(i);
  return lists;
}

// Calls may lie within calls: a destructor's within the one that it interrupts. Each depth has its own row.
function byDepth(list) {
  const depths = [], open = [];
  for (const i of list) {
    while (open.length && open[open.length - 1] <= begin[i]) open.pop();
    (depths[open.length] ||= []).push(i);
    open.push(end[i]);
  }
  return depths;
}

function addThread(lane, number, list) {
  const ranges = data.ranges.filter(r => r.lane === number), deep = Math.max(0, ...ranges.map(r => Math.max(r.depth, 0) + 1));
  if (!list.length && !ranges.length) return;
  if (ranges.length) addRow("ranges", deep * 19 + 5, { ranges, label: lane.name, sub: plural(ranges.length, "range") });
  byDepth(list).forEach((part, depth) => addRow("host", 26, { list: Int32Array.from(part),
    label: depth ? "" : ranges.length ? "calls" : lane.name, sub: depth ? "" : plural(list.length, "call") }));
}

function addStream(lane, list) {
  let busy = 0, work = 0;
  for (const i of list) if (isWork(kindOf(i))) { busy += columns.length[i]; work++; }
  const share = (100 * busy / (whole[1] - whole[0])).toFixed(busy ? 1 : 0);
  addRow("stream", 34, { list: Int32Array.from(list), label: lane.name, sub: `busy ${share} %, ${plural(work, "command")}`, created: lane.created });
}

function addEngines(lists) {
  for (const [kind, label] of [["copy_in", "copy engine in"], ["copy_out", "copy engine out"], ["copy", "copies between devices"]]) {
    const found = lists.flat().filter(i => kindOf(i) === kind).sort((a, b) => begin[a] - begin[b]);
    if (found.length) addRow("engine", 19, { list: Int32Array.from(found), label, sub: "" });
  }
}

function addMemory(height, curve, label) {
  const most = values => values.reduce((a, b) => Math.max(a, b), 0), used = most(curve.used), reserved = most(curve.reserved);
  addRow("memory", height, { curve, label, used, reserved, sub: `${size(used)}, ${size(reserved)} reserved` });
}

(() => {
  const lists = perLane(), of = device => data.lanes.map((lane, i) => [lane, i]).filter(([lane]) => lane.device === device);
  addRow("head", HEADS, { label: "program", sub: "host threads" });
  for (const [lane, i] of of(-1)) addThread(lane, i, lists[i]);
  if (data.memory[-1]) addMemory(46, data.memory[-1], "pinned memory");
  for (const device of data.devices) {
    const mine = of(device.index).filter(([, i]) => lists[i].length), curve = data.memory[device.index];
    if (!mine.length && !curve) continue;
    addRow("head", HEADS, { label: `cuda:${device.index}`, sub: device.name });
    for (const [lane, i] of mine) addStream(lane, lists[i]);
    addEngines(mine.map(([, i]) => lists[i]));
    if (curve) addMemory(58, curve, "memory");
  }
  rows.forEach((row, r) => { if (row.list && row.type !== "engine") for (const i of row.list) rowOf[i] = r; });
  const streams = new Map();  // waits that took no time have no bar, but arrows to their rows
  for (let i = 0; i < count; i++) if (rowOf[i] >= 0 && rows[rowOf[i]].type === "stream") streams.set(columns.lane[i], rowOf[i]);
  for (let i = 0; i < count; i++) if (rowOf[i] < 0) rowOf[i] = streams.get(columns.lane[i]) ?? -1;
})();
const tall = rows.length ? rows[rows.length - 1].y + rows[rows.length - 1].height : 0;

// The first of a row's slices, from a place on, that ends after a time: the slices of a row follow each other.
function firstAfter(list, time, low = 0) {
  let high = list.length;
  while (low < high) { const mid = (low + high) >> 1; if (end[list[mid]] < time) low = mid + 1; else high = mid; }
  return low;
}

// -- arrows, by the slices at their ends; races, by their slices
const arrows = data.arrows.from.map((from, n) => ({ from, to: data.arrows.to[n], kind: data.kinds[data.arrows.kind[n]], text: data.texts[data.arrows.text[n]] }))
  .sort((a, b) => end[a.to] - end[b.to]);
const arrowsTo = new Map(), arrowsFrom = new Map(), racesOf = new Map(), given = new Map();
const put = (map, key, value) => { const found = map.get(key); if (found) found.push(value); else map.set(key, [value]); };
for (const a of arrows) { put(arrowsTo, a.to, a); put(arrowsFrom, a.from, a); }
data.races.forEach((race, n) => { for (const side of race.sides) if (side.slice >= 0) put(racesOf, side.slice, n); });
for (let i = 0; i < count; i++) if (columns.cause[i] >= 0 && kindOf(i) !== "wait") put(given, columns.cause[i], i);

// What a command waited for: the arrows of the waits between it and the command before it on its stream.
function waitedFor(i) {
  const own = arrowsTo.get(i) || [];
  if (!isWork(kindOf(i))) return own;
  const found = [...own];
  for (let j = i - 1; j >= 0 && columns.lane[j] === columns.lane[i] && kindOf(j) === "wait"; j--) found.push(...(arrowsTo.get(j) || []));
  return found;
}

// -- what bounds the run: from its last end back, each time to what ended last of all that had to come first
const previous = new Int32Array(count).fill(-1);
for (const row of rows) if (row.list && row.type !== "engine") for (let n = 1; n < row.list.length; n++) previous[row.list[n]] = row.list[n - 1];

const lateComers = new Map();  // of parts that end together in a collective: the one that came last
const meeting = i => `${columns.name[i]} ${end[i]}`;
for (let i = 0; i < count; i++) if (kindOf(i) === "collective" && !(begin[lateComers.get(meeting(i))] >= begin[i])) lateComers.set(meeting(i), i);

function boundBy(i) {  // [slice, whether `i` itself was but waiting for its end]
  const latest = found => found.reduce((best, j) => j >= 0 && (best < 0 || end[j] > end[best]) ? j : best, -1);
  const awaited = latest((arrowsTo.get(i) || []).map(a => a.from).filter(j => end[j] > begin[i]));
  if (awaited >= 0) return [awaited, true];
  const late = lateComers.get(meeting(i));
  if (kindOf(i) === "collective" && begin[late] > begin[i]) return [late, true];
  const cause = columns.cause[i], call = cause < 0 || end[cause] <= begin[i] ? cause : previous[cause];  // a call that waits ends with its command
  return [latest([call, previous[i], ...waitedFor(i).map(a => a.from)].filter(j => j >= 0 && end[j] <= begin[i])), false];
}

const onHost = i => laneOf(i).device < 0;
function criticalPath() {  // since when each of its slices counts; the same slices by row; how long what took on it
  const since = new Map(), inRow = new Map(), spent = new Map(), add = (kind, ns) => { if (ns > 0) spent.set(kind, (spent.get(kind) || 0) + ns); };
  let i = -1;
  for (let j = 0; j < count; j++) if (rowOf[j] >= 0 && (i < 0 || end[j] > end[i])) i = j;
  for (let until = i < 0 ? 0 : end[i]; i >= 0 && !since.has(i);) {
    const [next, waited] = boundBy(i), from = next < 0 ? begin[i] : Math.min(end[next], until);
    since.set(i, waited ? from : begin[i]);
    put(inRow, rowOf[i], i);
    add(kindOf(i), until - since.get(i));
    if (!waited) add(onHost(i) && next >= 0 && onHost(next) ? "program" : "latency", begin[i] - from);
    until = from; i = next;
  }
  for (const list of inRow.values()) list.reverse();
  return { since, inRow, spent };
}

// -- words
function time(ns) {
  const sign = ns < 0 ? "-" : "", n = Math.abs(ns);
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (n >= size) return sign + (n / size).toPrecision(n / size >= 1000 ? 5 : 4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "") + " " + unit;
  return `${sign}${Math.round(n)} ns`;
}
// A point in time, told to within `step`; of a point alone to the nanosecond.
function moment(ns, step = 1) {
  const [unit, one] = ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  const digits = Math.min(Math.max(0, Math.ceil(Math.log10(one / Math.max(step, 1)) - 1e-9)), Math.log10(one));
  return (ns / one).toFixed(digits) + " " + unit;
}
function size(n) {
  if (n < 1024) return n + " B";
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) { n /= 1024; if (n < 1024 || unit === "TiB") return n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0) + " " + unit; }
}
function rate(i) {
  const bytes = columns.bytes[i], length = columns.length[i];
  return bytes && length && isWork(kindOf(i)) ? ` (${(bytes / length).toFixed(bytes / length < 10 ? 2 : 0)} GB/s)` : "";
}
const laneOf = i => data.lanes[columns.lane[i]];
function laneName(i) { const lane = laneOf(i); return lane.device < 0 ? `thread ${lane.name}` : `cuda:${lane.device}, ${lane.name}`; }

// -- searching: a slice is a hit if its name, its line, its shapes or its reason is
let hits = null, hitList = [], hitAt = -1;  // hits: 1 for each slice that is one; null: nothing is searched
function search(text) {
  text = text.trim().toLowerCase();
  hitAt = -1; hitList = []; hits = null;
  if (!text) return;
  const of = values => values.map(v => (Array.isArray(v) ? v.join(" ") : v).toLowerCase().includes(text));
  const names = of(data.names), texts = of(data.texts), lines = of(data.lines);
  hits = new Uint8Array(count);
  for (let i = 0; i < count; i++)
    if (names[columns.name[i]] || texts[columns.detail[i]] || texts[columns.why[i]] || (columns.line[i] >= 0 && lines[columns.line[i]])) { hits[i] = 1; hitList.push(i); }
  hitList.sort((a, b) => begin[a] - begin[b]);
}
