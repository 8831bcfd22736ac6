// Internal: what draws the page of a run in the browser, from the JSON in the page, with what report_tools.hpp has.
#pragma once

namespace tessera::cli {

inline constexpr const char* kRunReportScript = R"script(
const facts = data.facts, times = data.timelines;
const count = value => value >= 1e9 ? digits(value / 1e9) + ' B' : value >= 1e6 ? digits(value / 1e6) + ' M' : value >= 1e4 ? digits(value / 1e3) + ' k' : String(Math.round(value));
const or = (value, said) => value === null || value === undefined ? '–' : said(value);
const against = (measured, predicted) => measured === null || predicted === null ? '' : ` (${predicted >= measured ? '+' : '−'}${percent(Math.abs(predicted / measured - 1))})`;

function header() {
  const of = `${facts.steps}${facts.planned_steps === null ? '' : ' of ' + facts.planned_steps} steps`;
  at('subject').textContent = [`${facts.state}, ${of}`, facts.plan, facts.workers === null ? '' : plural(facts.workers, 'worker') + ' on ' + facts.cluster,
    facts.prices && facts.predicted ? 'predicted by ' + facts.prices : ''].filter(Boolean).join('; ');
  const m = facts.measured, p = facts.predicted, step = p ? p.step : facts.planned_step;
  const share = name => m || p ? [or(m && m[name], percent), p ? `of a step; predicted ${percent(p[name])}` : 'of a step'] : ['–', 'no trace yet'];
  const fullest = data.ranks.filter(r => r.memory !== null).sort((a, b) => b.memory - a.memory)[0];
  const tiles = [
    ['Step, median', or(facts.step_seconds, seconds), step === null ? 'no prediction' : `predicted ${seconds(step)}${against(facts.step_seconds, step)}`],
    [`${facts.counted[0].toUpperCase()}${facts.counted.slice(1)}/s, median`, or(facts.tokens_per_s, count), step === null || facts.tokens_of_step === null ? '' : `predicted ${count(facts.tokens_of_step / step)}`],
    ['Exposed communication', ...share('exposed')],
    ['Idle', ...share('idle')],
    ['Memory, fullest rank', fullest ? bytes(fullest.memory) : '–', fullest && fullest.memory_predicted !== null ? `rank ${fullest.rank}; predicted ${bytes(fullest.memory_predicted)}` : ''],
    ['Loss', or(facts.final_loss, value => value.toFixed(3)), facts.best_validation_loss === null ? '' : `best validation ${facts.best_validation_loss.toFixed(3)}`]];
  at('tiles').replaceChildren(...tiles.map(([name, value, note]) => tag('div', {}, [tag('dt', {}, name), tag('dd', {}, [value, tag('small', {}, note)])])));
  const notes = facts.last_error && facts.state === 'failed' ? ['ended with: ' + facts.last_error, ...data.notes] : data.notes;
  if (notes.length) at('notes').replaceChildren(...notes.map(note => tag('li', {class: 'note'}, note)));
  else at('notes').remove();
}

// The stretch of time that is shown, in seconds, and what redraws it.
const both = [['measured', times.measured], ['predicted', times.predicted]].filter(([, line]) => line);
const whole = Math.max(0, ...both.map(([, line]) => line.length));
let view = [0, whole], redraw = () => {};
function look(begin, end) {
  const least = whole / 5000, size = Math.min(whole, Math.max(least, end - begin)), from = Math.min(whole - size, Math.max(0, begin));
  view = [from, from + size];
  redraw();
}
const zoom = (factor, centre) => look(centre - (centre - view[0]) * factor, centre + (view[1] - centre) * factor);
const middle = () => (view[0] + view[1]) / 2;
const shift = part => look(view[0] + part * (view[1] - view[0]), view[1] + part * (view[1] - view[0]));

// Instructions of both timelines by rank and instruction: {measured: [begin, length, words], predicted: ...} in seconds.
const ran = new Map();
for (const [name, line] of both)
  for (const row of line.rows)
    for (const [, begin, length, , said, instruction] of row.spans)
      if (instruction >= 0) {
        const key = row.rank + '.' + instruction;
        ran.set(key, Object.assign(ran.get(key) || {}, {[name]: [begin / 1e6, length / 1e6, times.words[said]]}));
      }

function said(which, rank, span) {
  const [kind, begin, length, , words, instruction] = span, name = words >= 0 ? times.words[words] : times.kinds[kind][0] + ', several';
  const own = `rank ${rank}: ${name}: ${which} ${seconds(length / 1e6)} from ${seconds(begin / 1e6)}`;
  const pair = times.alike && instruction >= 0 && ran.get(rank + '.' + instruction), other = which === 'measured' ? 'predicted' : 'measured';
  return own + (pair && pair[other] ? `; ${other} ${seconds(pair[other][1])} from ${seconds(pair[other][0])}` : '');
}

function timeline() {
  if (!both.length) {
    at('timeline-note').textContent = 'Nothing to draw: neither a trace of the run nor a prediction.';
    at('timeline-readout').remove();
    return;
  }
  const shown = both[0][1];
  at('timeline-note').textContent = [
    times.measured ? `Measured: step ${times.step}, whose length is nearest the median of the ${plural(times.traced, 'step')} in trace.json.` : '',
    times.predicted ? 'Predicted: the programs of the ranks against the simulator\'s clock.' : '',
    'Of each rank: its computation with the numbers of the micro-batches; below it messages, then collectives, from when all who take part have come to them.',
    shown.ranks > shown.rows.length ? `${shown.rows.length} of ${shown.ranks} ranks are shown.` : '',
    both.some(([, line]) => line.joined) ? 'Neighbours too short to be seen are joined.' : ''].filter(Boolean).join(' ');
  const used = new Set(both.flatMap(([, line]) => line.rows.flatMap(row => row.spans.map(span => span[0]))));
  legend(at('timeline-legend'), times.kinds.map((kind, k) => [kind[0], kind[2], k]).filter(entry => used.has(entry[2])));
  const press = (name, action) => { const button = tag('button', {type: 'button'}, name); button.addEventListener('click', action); return button; };
  at('timeline-controls').replaceChildren(press('Zoom in', () => zoom(0.5, middle())), press('Zoom out', () => zoom(2, middle())), press('Earlier', () => shift(-0.5)),
    press('Later', () => shift(0.5)), press('Whole step', () => look(0, whole)), tag('span', {class: 'soft'}, 'or drag over a stretch of time; Ctrl and wheel'));
  at('timeline-readout').textContent = 'Point at an instruction to see it here' + (times.alike && both.length > 1 ? ', and where it stands in the other timeline.' : '.');
  chart('timeline', 620, drawTimelines);
  redraw = charts[charts.length - 1];
}

function drawTimelines(width) {
  const left = 104, right = 8, titled = 22, space = width - left - right, [from, to] = view;
  const x = time => left + (Math.min(to, Math.max(from, time)) - from) / (to - from) * space, nodes = [], boxes = new Map();
  let top = 0;
  for (const [name, line] of both) {
    nodes.push(words(left, top + 15, `${name}: ${seconds(line.length)}`, {style: 'font-weight:600'}));
    top += titled;
    for (const row of line.rows) {
      nodes.push(tip(words(left - 8, top + 12, 'rank ' + row.rank, {'text-anchor': 'end'}), `rank ${row.rank}${row.place ? ', ' + row.place : ''}`));
      if (row.stages.length) nodes.push(words(left - 8, top + 25, row.stages.length > 1 ? plural(row.stages.length, 'stage') : 'stage ' + row.stages[0], {'text-anchor': 'end', class: 'soft', style: 'font-size:11px'}));
      if (from < line.length) nodes.push(shape('rect', {x: left, y: top, width: x(line.length) - left, height: 16, class: 'ground'}));
      const drawn = new Map();  // by kind, where the last box that is as thin as a pixel stands
      for (const span of row.spans) {
        const [kind, micros, length, batch, , instruction] = span, begin = micros / 1e6, end = begin + length / 1e6;
        if (end < from || begin > to) continue;
        const [dy, h] = lanes[times.kinds[kind][1]], x0 = x(begin), w = x(end) - x0;
        if (w < 0.5 && Math.round(x0) === drawn.get(kind)) continue;
        if (w < 0.5) drawn.set(kind, Math.round(x0));
        const box = shape('rect', {x: x0.toFixed(2), y: top + dy, width: Math.max(0.5, w - (w > 3 ? 0.8 : 0)).toFixed(2), height: h, fill: times.kinds[kind][2]});
        box.about = [name, row.rank, span];
        if (instruction >= 0 && times.alike) {
          const key = row.rank + '.' + instruction;
          boxes.set(key, [...(boxes.get(key) || []), box]);
        }
        nodes.push(tip(box, said(name, row.rank, span)));
        if (h > 10 && batch >= 0 && w > 8 * String(batch).length + 3)
          nodes.push(words(x0 + w / 2, top + dy + 12, batch, {'text-anchor': 'middle', style: `font-size:11px;fill:${inkOn(times.kinds[kind][2])};pointer-events:none`}));
      }
      top += rankHeight;
    }
    top += 6;
  }
  for (const tick of ticksOf(from, to, width > 900 ? 10 : 5)) {
    nodes.unshift(shape('line', {x1: x(tick), x2: x(tick), y1: titled, y2: top + 4, class: 'line', 'stroke-width': 0.6}));
    nodes.push(words(x(tick), top + 17, seconds(tick), {'text-anchor': x(tick) - left < 20 ? 'start' : x(tick) > width - 40 ? 'end' : 'middle', class: 'soft'}));
  }
  const picked = shape('rect', {x: left, y: 0, width: 0, height: top, fill: '#0072B2', 'fill-opacity': 0.18, style: 'pointer-events:none'});
  const picking = picture(width, top + 24, `Timelines, ${both.map(([name, line]) => `${name} ${seconds(line.length)}`).join(' and ')}; the tables below have the sums`, [...nodes, picked]);
  picking.setAttribute('class', 'picks');
  const timeAt = event => from + Math.min(1, Math.max(0, (event.clientX - picking.getBoundingClientRect().left - left) / space)) * (to - from);
  let start = null, lit = [];
  picking.addEventListener('pointerover', event => {
    if (start !== null || !event.target.about) return;
    const [name, rank, span] = event.target.about;
    lit.forEach(box => box.classList.remove('lit'));
    lit = boxes.get(rank + '.' + span[5]) || [event.target];
    lit.forEach(box => box.classList.add('lit'));
    at('timeline-readout').textContent = said(name, rank, span);
  });
  picking.addEventListener('pointerdown', event => { if (event.button === 0 && event.pointerType !== 'touch') { start = timeAt(event); picking.setPointerCapture(event.pointerId); event.preventDefault(); } });
  picking.addEventListener('pointermove', event => {
    if (start === null) return;
    const now = timeAt(event);
    make(picked, {x: x(Math.min(start, now)), width: Math.abs(x(now) - x(start))});
  });
  picking.addEventListener('pointerup', event => {
    if (start === null) return;
    const begin = start, end = timeAt(event);
    start = null;
    picked.setAttribute('width', 0);
    if (Math.abs(x(end) - x(begin)) > 4) look(Math.min(begin, end), Math.max(begin, end));
  });
  picking.addEventListener('wheel', event => { if (event.ctrlKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event)); } }, {passive: false});
  return picking;
}

function kinds() {
  if (!data.kinds.length) { at('kinds').parentNode.remove(); return; }
  const m = facts.measured, p = facts.predicted;
  at('kinds-note').textContent = 'Of a step on all ranks' + (m ? `; measured: medians over the ${plural(times.traced, 'step')} of the trace` : '') +
    '. An optimizer step has the norm and the clearing of gradients in it. Communication counts from when all who take part have come to it.';
  const of = (row, which, name) => row[which] ? seconds(row[which][name]) : '–';
  // Title, cell; a side that is not there has no columns.
  const columns = [['kind', row => row.kind.replaceAll('_', ' ')], ['in a step', row => String((row.measured || row.predicted).count)],
    m && ['one, measured', row => of(row, 'measured', 'median')], p && ['one, predicted', row => of(row, 'predicted', 'median')],
    m && ['all, measured', row => of(row, 'measured', 'total')], p && ['all, predicted', row => of(row, 'predicted', 'total')],
    m && p && ['predicted / measured', row => row.measured && row.predicted && row.measured.total > 0 ? (row.predicted.total / row.measured.total).toFixed(2) + '\u00a0×' : '–']].filter(Boolean);
  at('kinds').replaceChildren(table(columns.map(([title], i) => [title, i > 0]), data.kinds.map(row => columns.map(([, cell]) => cell(row)))));
}

function ranks() {
  if (!data.ranks.length) { at('ranks').parentNode.remove(); return; }
  at('ranks-note').textContent = 'How each rank spends a step: measured, the mean of the shares' + (facts.predicted ? ', and predicted in brackets' : '') + '. Exposed: something that it takes part in is being transferred, and it does not compute.' +
    (facts.workers !== null && facts.workers > data.ranks.length ? ` The first ${data.ranks.length} of ${facts.workers} ranks.` : '');
  const cell = (row, name) => `${row.measured ? seconds(row.measured[name]) : '–'}${row.predicted ? ` (${seconds(row.predicted[name])})` : ''}`;
  at('ranks').replaceChildren(table([['rank', false], ['computing', true], ['exposed communication', true], ['reading samples', true], ['idle', true], ['peak memory', true], ['predicted', true], ['limit', true]],
    data.ranks.map(row => ['rank ' + row.rank, ...['computing', 'exposed', 'reading', 'idle'].map(name => cell(row, name)), or(row.memory, bytes), or(row.memory_predicted, bytes), or(row.limit, bytes)])));
}

const memoryColour = {measured: '#0072B2', predicted: '#E69F00'};
function memory() {
  const rows = data.ranks.filter(row => row.memory !== null || row.memory_predicted !== null).slice(0, 16);
  if (!rows.length) { at('memory').parentNode.remove(); return; }
  const most = Math.max(...rows.flatMap(row => [row.memory || 0, row.memory_predicted || 0]));
  at('memory-note').textContent = 'Peak of each process, with everything counted in: what it held, and what the plan ' + (facts.predicted ? 'is simulated to take.' : 'was predicted to take.') +
    (rows.length < data.ranks.length ? ` The first ${rows.length} ranks; the table above has more.` : '');
  legend(at('memory-legend'), Object.entries(memoryColour));
  chart('memory', 260, width => {
    const left = 64, right = 190, scale = (width - left - right) / most, nodes = [];
    rows.forEach((row, r) => {
      const y = r * 32 + 4;
      nodes.push(words(left - 8, y + 16, 'rank ' + row.rank, {'text-anchor': 'end'}));
      [['measured', row.memory], ['predicted', row.memory_predicted]].forEach(([name, value], i) => {
        if (value !== null) nodes.push(tip(shape('rect', {x: left, y: y + 12 * i, width: value * scale, height: 11, fill: memoryColour[name]}), `rank ${row.rank}: ${name} ${bytes(value)}`));
      });
      nodes.push(words(width, y + 16, [row.memory, row.memory_predicted].map(value => or(value, bytes)).join(' | '), {'text-anchor': 'end'}));
    });
    return picture(width, rows.length * 32 + 6, 'Memory of the ranks, measured and predicted; the table above has the figures', nodes);
  });
}

function tables() {
  const all = data.tables;
  if (!all) { at('tables').parentNode.remove(); return; }
  const allowed = all.consistency === 'synchronous' ? 'Steps see all steps before them.'
    : all.consistency === 'geo' ? `Ranks train copies, and exchange what has changed every ${plural(all.exchange_every, 'step')}.`
    : `Pulls may miss ${plural(all.staleness, 'step')} of other ranks; ${count(all.seen.pulls)} of them have missed ${all.seen.mean.toFixed(2)} in the mean, and ${all.seen.most} at most.`;
  at('tables-note').textContent = `Rows on parameter servers, over ${plural(all.steps, 'step')} in ${seconds(all.seconds)}, with the validations and checkpoints among them. ${allowed} ` +
    'Pulls and pushes are messages of up to 8192 keys, each told by its median and its 99th percentile (p50 | p99): from its arrival at the server to the answer, waiting for other ranks included, the network not. Skew: rows of the fullest server over their mean.';
  const rate = keys => or(all.seconds > 0 ? keys / all.seconds : null, value => count(value) + '/s'), took = part => part.median === undefined ? '–' : `${seconds(part.median)} | ${seconds(part.p99)}`;
  const row = (name, part, skew) => [name, count(part.rows), or(skew, value => value.toFixed(2)), bytes(part.memory_bytes), part.disk_bytes ? bytes(part.disk_bytes) : '–', or(part.hits, percent),
    rate(part.keys_pulled), took(part.pulls), rate(part.keys_pushed), took(part.pushes)];
  const rows = all.tables.flatMap(one => {
    const mean = one.rows / Math.max(1, one.servers.length), each = one.servers.length > 1 ? one.servers : [];
    return [row(one.name + (each.length ? `, ${each.length} servers` : ''), one, one.skew), ...each.map(server => row('\u2003' + server.place, server, mean > 0 ? server.rows / mean : null))];
  });
  at('tables').replaceChildren(table([['table', false], ['rows', true], ['skew', true], ['memory', true], ['disk', true], ['in memory', true], ['keys pulled', true], ['a pull', true], ['keys pushed', true], ['a push', true]], rows));
}

// Lines: [[name, colour, points]]; points: [[step, value or null]].
function curve(id, lines, format) {
  const points = lines.flatMap(line => line[2]).filter(point => point[1] !== null), readout = at(id + '-readout');
  if (!points.length) { at(id).textContent = 'no values'; readout.remove(); return; }
  const steps = points.map(point => point[0]), values = points.map(point => point[1]), first = Math.min(...steps), last = Math.max(...steps, first + 1);
  const lowest = Math.min(...values), highest = Math.max(...values), log = lowest > 0 && highest / lowest > 50, edge = log ? 0 : (highest - lowest) * 0.06 || Math.abs(highest) * 0.1 || 1;
  const span = log ? [Math.log(lowest / 1.1), Math.log(highest * 1.1)] : [lowest >= 0 && lowest < highest * 0.3 ? 0 : lowest - edge, highest + edge];
  chart(id, 260, width => {
    const left = 52, right = 10, top = 8, height = 200, bottom = height - 24;
    const x = step => left + (step - first) / (last - first) * (width - left - right), y = value => bottom - ((log ? Math.log(value) : value) - span[0]) / (span[1] - span[0]) * (bottom - top), nodes = [];
    const rows = log ? [1, 2, 5].flatMap(f => [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8].map(p => f * 10 ** p)).filter(v => v >= Math.exp(span[0]) && v <= Math.exp(span[1])) : ticksOf(span[0], span[1], 5);
    for (const value of rows) {
      nodes.push(shape('line', {x1: left, x2: width - right, y1: y(value), y2: y(value), class: 'line', 'stroke-width': 0.6}));
      nodes.push(words(left - 6, y(value) + 4, format(value), {'text-anchor': 'end', class: 'soft'}));
    }
    for (const step of ticksOf(first, last, 5).filter(Number.isInteger)) nodes.push(words(x(step), height - 6, count(step), {'text-anchor': x(step) > width - 30 ? 'end' : 'middle', class: 'soft'}));
    for (const [name, colour, of] of lines) {
      const path = of.map(([step, value], i) => value === null ? '' : `${i === 0 || of[i - 1][1] === null ? 'M' : 'L'}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join('');
      nodes.push(shape('path', {d: path, style: `fill:none;stroke:${colour};stroke-width:1.6;stroke-linejoin:round`}));
      if (of.length < 60) for (const [step, value] of of) if (value !== null) nodes.push(shape('circle', {cx: x(step).toFixed(1), cy: y(value).toFixed(1), r: 2.2, fill: colour}));
    }
    const mark = shape('line', {x1: left, x2: left, y1: top, y2: bottom, class: 'line', visibility: 'hidden'});
    const drawn = picture(width, height, `${lines.map(line => line[0]).join(' and ')} from ${format(lowest)} to ${format(highest)} over the steps ${first} to ${last}`, [...nodes, mark]);
    drawn.addEventListener('pointermove', event => {
      const step = first + (event.clientX - drawn.getBoundingClientRect().left - left) / (width - left - right) * (last - first);
      const near = lines.map(([name, , of]) => [name, of.reduce((best, point) => point[1] !== null && (best === null || Math.abs(point[0] - step) < Math.abs(best[0] - step)) ? point : best, null)]).filter(entry => entry[1]);
      make(mark, {x1: x(near[0][1][0]), x2: x(near[0][1][0]), visibility: 'visible'});
      readout.textContent = near.map(([name, point]) => `${name} ${format(point[1])} after ${plural(point[0], 'step')}`).join(', ');
    });
    return drawn;
  });
}

function curves() {
  const c = data.curves;
  at('curves-note').textContent = c.steps === 0 ? 'No step has been made.' : `${plural(c.steps, 'step')}.` + (c.thinned ? ' Thinned out: of each stretch of steps the lowest and the highest value are drawn.' : '');
  if (c.steps === 0 && !c.validation.length) { document.querySelector('.curves').remove(); at('curves-legend').remove(); return; }
  const losses = [['training loss', '#0072B2', c.loss], ...(c.validation.length ? [['validation loss', '#D55E00', c.validation]] : [])];
  legend(at('curves-legend'), losses.length > 1 ? losses.map(line => [line[0], line[1]]) : []);
  curve('loss', losses, value => value.toFixed(value < 1 ? 3 : 2));
  curve('throughput', [[facts.counted + '/s', '#009E73', c.throughput]], count);
  curve('grad-norm', [['gradient norm', '#CC79A7', c.grad_norm]], value => String(+value.toPrecision(3)));
}

show([header, timeline, kinds, ranks, memory, tables, curves]);
)script";

}  // namespace tessera::cli
