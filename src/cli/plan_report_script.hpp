// Internal: what draws the report of a plan in the browser, from the JSON in the page, with what report_tools.hpp has.
#pragma once

namespace tessera::cli {

inline constexpr const char* kReportScript =
    R"script(const partColours = {'forward': '#0072B2', 'backward': '#E69F00', 'recompute': '#F0E442', 'exchange in passes': '#CC79A7', 'idle': '#999999',
  'gradient exchange': '#009E73', 'optimizer': '#D55E00', 'parameter gather': '#56B4E9'};
const memoryColours = {'weights': '#0072B2', 'gradients': '#E69F00', 'optimizer state': '#D55E00', 'activations': '#009E73', 'workspace': '#CC79A7',
  'communication buffers': '#56B4E9', 'process': '#999999'};
function header() {
  const f = data.facts;
  at('subject').textContent = `${f.model}; ${f.precision}, ${plural(f.global_batch, 'sample')} a step; on ${f.cluster}: ${f.devices}`;
  const fullest = data.memory.reduce((a, b) => b.bytes / b.limit > a.bytes / a.limit ? b : a);
  const tiles = [['Step', seconds(f.step), f.tokens],
    ['Plan', f.family, f.strategy],
    ['Pipeline', plural(f.stages, 'stage'), `${plural(f.micro_batches, 'micro-batch')} of ${f.micro_batch}, ${f.schedule}`],
    ['Fullest device', percent(fullest.bytes / fullest.limit), `${bytes(fullest.bytes)} of ${bytes(fullest.limit)}`],
    f.utilization === null ? ['Idle', percent(f.bubble), `samples of ${f.mean_tokens.toFixed(0)} tokens on average`]
      : ['Utilization', percent(f.utilization), `of peak FLOP/s; idle ${percent(f.bubble)}`]];
  at('tiles').replaceChildren(...tiles.map(([name, value, note]) => tag('div', {}, [tag('dt', {}, name), tag('dd', {}, [value, tag('small', {}, note)])])));
}

function mosaic() {
  const m = data.mosaic, many = m.strategies.length > 1;
  const letter = i => String.fromCharCode(65 + i % 26);
  at('mosaic-note').textContent = 'Down: the model. Across: who holds it. ' +
    'd: data-parallel replica, t: tensor-parallel part.' + (m.columns.some(c => c.count > 1) ? ' A column stands for several ranks.' : '');
  const places = [];
  for (const column of m.columns) {
    if (places.length && places[places.length - 1][0] === column.place) ++places[places.length - 1][1];
    else places.push([column.place, 1]);
  }
  const head = tag('thead', {}, [
    tag('tr', {}, [tag('td', {style: 'background:none'}), ...places.map(([place, span]) => tag('th', {colspan: span, class: 'soft', scope: 'colgroup'}, place))]),
    tag('tr', {}, [tag('td', {style: 'background:none'}), ...m.columns.map(c => tag('th', {scope: 'col', title: c.label}, c.count > 1 || m.columns.length < 9 ? c.label : c.label.replace('rank ', 'r')))])]);
  const body = m.rows.map((row, r) => {
    const colour = palette[row.strategy % palette.length];
    const height = 22 + Math.min(56, 4 * (row.blocks - 1));
    const cells = row.cells.map(cell => cell === '' ? tag('td', {}, '·')
      : tag('td', {class: 'on', style: `background:${colour};color:${inkOn(colour)}`, title: m.strategies[row.strategy]}, (many ? letter(row.strategy) + ': ' : '') + cell));
    const name = [`stage ${row.stage}: ${row.label}`, tag('small', {}, `${plural(row.blocks, 'block')}, ${row.parameters} parameters`)];
    return tag('tr', {style: `height:${height}px`, class: r && m.rows[r - 1].stage !== row.stage ? 'first' : ''}, [tag('th', {scope: 'row'}, name), ...cells]);
  });
  at('mosaic').replaceChildren(tag('table', {class: 'mosaic'}, [head, tag('tbody', {}, body)]));
  legend(at('mosaic-legend'), m.strategies.map((name, i) => [(many ? letter(i) + ': ' : '') + name, palette[i % palette.length]]));
}

function timeline() {
  const t = data.timeline, [from, to] = t.cut, cut = to > from;
  const used = t.kinds.map((_, k) => t.rows.some(row => row.sums[k] > 0));
  at('timeline-note').textContent = (data.facts.utilization === null ? `As if all samples had ${data.facts.longest} tokens. ` : '') + `The programs of the ranks against the simulator's clock: ${seconds(t.step)}; of all ranks' time ${percent(t.exposed)} is exposed communication, ${percent(t.bubble)} idle. ` +
    'Of each rank: its computation with the numbers of the micro-batches; below it messages, then collectives.' +
    (cut ? ` ${percent(to - from)} of the step, in which the pipeline repeats itself, is left out.` : '');
  legend(at('timeline-legend'), t.kinds.map(kind => [kind[0], kind[2]]).filter((_, k) => used[k]));
  chart('timeline', 620, width => {
    const left = 104, right = 8, gap = cut ? 34 : 0, high = rankHeight, top = 6, height = top + t.rows.length * high + 26;
    const scale = (width - left - right - gap) / (1 - (to - from));
    const x = time => left + (!cut || time <= from ? time * scale : time >= to ? (time - (to - from)) * scale + gap : from * scale + gap * (time - from) / (to - from));
    const nodes = [];
    t.rows.forEach((row, r) => {
      const y = top + r * high;
      nodes.push(tip(words(left - 8, y + 12, row.label.replace(/, one of.*/, ''), {'text-anchor': 'end'}), row.label + ', ' + row.place));
      nodes.push(words(left - 8, y + 25, plural(row.stages.length, 'stage').replace(/^1 stage$/, 'stage ' + row.stages[0]), {'text-anchor': 'end', class: 'soft', style: 'font-size:11px'}));
      nodes.push(shape('rect', {x: left, y, width: width - left - right, height: 16, class: 'ground'}));
      for (const [kind, begin, end, batch] of row.spans) {
        const [dy, h] = lanes[t.kinds[kind][1]], x0 = x(begin), w = Math.max(0.6, x(end) - x0);
        const box = shape('rect', {x: x0.toFixed(2), y: y + dy, width: Math.max(0.5, w - (w > 3 ? 0.8 : 0)).toFixed(2), height: h, fill: t.kinds[kind][2]});
        nodes.push(tip(box, `${row.label}: ${t.kinds[kind][0]}${batch >= 0 ? ' ' + batch : ''}, ${seconds((end - begin) * t.step)} from ${seconds(begin * t.step)}`));
        if (h > 10 && batch >= 0 && w > 8 * String(batch).length + 3)
          nodes.push(words(x0 + w / 2, y + 12, batch, {'text-anchor': 'middle', style: `font-size:11px;fill:${inkOn(t.kinds[kind][2])};pointer-events:none`}));
      }
    });
    const bottom = top + t.rows.length * high;
    if (cut) {
      nodes.push(shape('rect', {x: x(from), y: top, width: gap, height: bottom - top, style: 'fill:var(--card)'}));
      for (const time of [from, to]) nodes.push(shape('line', {x1: x(time), x2: x(time), y1: top, y2: bottom + 6, class: 'line', 'stroke-dasharray': '3 3'}));
      nodes.push(words(x(from) + gap / 2, bottom + 20, '···', {'text-anchor': 'middle', class: 'soft'}));
    }
    const ticks = width > 900 ? 10 : 5;
    for (let i = 0; i <= ticks; ++i) {
      const place = left + (width - left - right) * i / ticks;
      if (cut && place > x(from) - 40 && place < x(to) + 40) continue;
      const time = !cut || place <= x(from) ? (place - left) / scale : (place - left - gap) / scale + (to - from);
      nodes.push(shape('line', {x1: place, x2: place, y1: bottom, y2: bottom + 5, class: 'line'}));
      nodes.push(words(place, bottom + 18, seconds(time * t.step), {'text-anchor': i === 0 ? 'start' : i === ticks ? 'end' : 'middle', class: 'soft'}));
    }
    return picture(width, height, `Timeline of ${plural(t.rows.length, 'row')} over ${seconds(t.step)}; the table below has the sums`, nodes);
  });
  const columns = [['rank', false], ['stage', false], ['computing', true], ['communicating', true], ['idle', true], ...t.kinds.filter((_, k) => used[k]).map(kind => [kind[0], true])];
  at('timeline-table').replaceChildren(table(columns, t.rows.map(row => [row.label, row.stages.join(', '), seconds(row.busy), seconds(row.exposed), seconds(row.idle),
    ...row.sums.filter((_, k) => used[k]).map(seconds)])));
}

// One bar: [name, share of the whole width, colour, text]; names where there is room.
function bar(width, height, pieces, label) {
  const nodes = [];
  let x = 0;
  for (const [name, share, colour, text] of pieces) {
    const w = share * width;
    nodes.push(tip(shape('rect', {x, y: 0, width: Math.max(0, w - (w > 3 ? 1 : 0)), height, fill: colour}), text));
    if (w > 7.2 * name.length + 10) nodes.push(words(x + 6, height / 2 + 4, name, {style: `fill:${inkOn(colour)};pointer-events:none`}));
    x += w;
  }
  return picture(width, height, label, nodes);
}

function parts() {
  const step = data.facts.step, colour = name => colourOf(partColours, name);
  at('parts-note').textContent = `Predicted ${seconds(step)}, by terms on the rank that takes longest.`;
  chart('parts', 200, width => bar(width, 34, data.parts.map(([name, time]) => [name, time / step, colour(name), `${name}: ${seconds(time)}, ${percent(time / step)}`]), 'The terms of the step; the table below has them'));
  const rows = data.parts.map(([name, time]) => [tag('span', {}, [tag('i', {style: `display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px;background:${colour(name)}`}), name]), seconds(time), percent(time / step)]);
  at('parts-table').replaceChildren(table([['term', false], ['time', true], ['of the step', true]], rows));
}

function memory() {
  const rows = data.memory, names = [...new Set(rows.flatMap(row => row.parts.map(part => part[0])))], colour = name => colourOf(memoryColours, name);
  at('memory-note').textContent = 'Peak of each rank, with everything counted in, against what it may use (the line).';
  legend(at('memory-legend'), names.map(name => [name, colour(name)]));
  chart('memory', 260, width => {
    const narrow = width < 560, left = narrow ? 0 : 128, right = narrow ? 0 : 168, high = narrow ? 46 : 30, most = Math.max(...rows.map(row => Math.max(row.bytes, row.limit)));
    const scale = (width - left - right - 4) / most, nodes = [];
    rows.forEach((row, r) => {
      const y = r * high + (narrow ? 18 : 4), text = `${bytes(row.bytes)} of ${bytes(row.limit)}, ${percent(row.bytes / row.limit)}`;
      const label = row.label + (row.count > 1 ? ', each' : '');
      nodes.push(words(narrow ? 0 : left - 8, narrow ? y - 5 : y + 14, label, {'text-anchor': narrow ? 'start' : 'end'}));
      nodes.push(words(width, narrow ? y - 5 : y + 14, text, {'text-anchor': 'end'}));
      nodes.push(shape('rect', {x: left, y, width: row.limit * scale, height: 20, class: 'ground'}));
      let x = left;
      for (const [name, value] of row.parts) {
        nodes.push(tip(shape('rect', {x, y, width: value * scale, height: 20, fill: colour(name)}), `${label}: ${name} ${bytes(value)}`));
        x += value * scale;
      }
      nodes.push(shape('line', {x1: left + row.limit * scale, x2: left + row.limit * scale, y1: y - 3, y2: y + 23, style: 'stroke:var(--mark);stroke-width:2'}));
    });
    return picture(width, rows.length * high + 8, 'Memory of the ranks against their limits; the table below has the parts', nodes);
  });
  at('memory-table').replaceChildren(table([['ranks', false], ['where', false], ...names.map(name => [name, true]), ['all', true], ['limit', true]], rows.map(row => [row.label, row.place,
    ...names.map(name => bytes((row.parts.find(part => part[0] === name) || ['', 0])[1])), bytes(row.bytes), bytes(row.limit)])));
}

// By terms, what a plan loses against the chosen one and what it gains, the largest first.
function differences(candidate) {
  const best = new Map(data.parts), own = new Map(candidate.parts);
  return [...new Set([...best.keys(), ...own.keys()])].map(name => [name, (own.get(name) || 0) - (best.get(name) || 0)])
    .filter(([, time]) => Math.abs(time) > 1e-3 * data.facts.step).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
}

function others() {
  const said = list => list.slice(0, 3).map(([name, time]) => `${name} ${seconds(Math.abs(time))}`).join(', ') || '–';
  at('others-note').textContent = data.candidates.length ? `The best of each other family, of ${plural(data.facts.considered, 'plan')} considered, against the chosen one.` : 'No other family of plans divides.';
  if (!data.candidates.length) return;
  const rows = data.candidates.map(c => {
    const change = differences(c);
    return [tag('span', {}, [tag('strong', {}, c.family), tag('br'), tag('span', {class: 'soft'}, c.detail)]), String(c.workers), c.fits ? seconds(c.step) : '–',
      c.fits ? '+' + percent(c.step / data.facts.step - 1) : '–', `${bytes(c.bytes)} of ${bytes(c.limit)}`,
      c.fits ? said(change.filter(d => d[1] > 0)) : `does not fit: lacks ${bytes(c.bytes - c.limit)} a rank`, c.fits ? said(change.filter(d => d[1] < 0)) : '–'];
  });
  at('others').replaceChildren(table([['plan', false], ['workers', true], ['step', true], ['slower', true], ['memory', true], ['loses in', false], ['gains in', false]], rows));
}

function front() {
  const best = data.facts, points = data.front, alike = new Set(points.map(p => p.limit)).size === 1, limit = alike ? points[0].limit : 1;
  const share = p => alike ? p.bytes : p.bytes / p.limit;
  const fullest = Math.max(...data.memory.map(row => row.bytes / row.limit)), chosen = {bytes: fullest * points[0].limit, limit: points[0].limit, step: best.step};
  at('front-note').textContent = `No plan considered is both faster and smaller than one of these. ` + (alike ? 'The limit is what there is.' : 'Memory as a share of what the device has.') +
    ' Hollow ones do not fit. The large one is the chosen plan: of plans equally fast the simplest.';
  chart('front', 300, width => {
    const left = 64, right = 16, top = 14, height = Math.min(420, Math.max(300, width * 0.42)), bottom = height - 44;
    const xs = [...points, chosen].map(share), ys = [...points, chosen].map(p => p.step), near = Math.max(...xs) > 0.3 * limit, high = near ? Math.max(...xs, limit) * 1.05 : Math.max(...xs) * 1.2, slow = Math.max(...ys), fast = Math.min(...ys), log = slow / fast > 8;
    const low = Math.min(...xs) > 0.4 * high ? Math.min(...xs) * 0.9 : 0;
    const unit = !alike ? 0.01 : high < 4 * 2 ** 30 ? 2 ** 20 : 2 ** 30;
    const x = value => left + (value - low) / (high - low) * (width - left - right);
    const span = log ? [Math.log(fast / 1.15), Math.log(slow * 1.15)] : [0, slow * 1.08];
    const y = value => bottom - ((log ? Math.log(value) : value) - span[0]) / (span[1] - span[0]) * (bottom - top);
    const nodes = [];
    for (const tick of ticksOf(low / unit, high / unit, width < 500 ? 4 : 8)) {
      const value = tick * unit;
      nodes.push(shape('line', {x1: x(value), x2: x(value), y1: top, y2: bottom, class: 'line', 'stroke-width': 0.6}));
      nodes.push(words(x(value), bottom + 17, +tick.toPrecision(3), {'text-anchor': 'middle', class: 'soft'}));
    }
    const times = log ? [1, 2, 5].flatMap(f => [-4, -3, -2, -1, 0, 1, 2, 3, 4].map(p => f * 10 ** p)).filter(v => v >= Math.exp(span[0]) && v <= Math.exp(span[1])) : ticksOf(0, span[1], 5);
    for (const value of times) {
      nodes.push(shape('line', {x1: left, x2: width - right, y1: y(value), y2: y(value), class: 'line', 'stroke-width': 0.6}));
      nodes.push(words(left - 6, y(value) + 4, value === 0 ? '0' : seconds(value), {'text-anchor': 'end', class: 'soft'}));
    }
    nodes.push(words((left + width - right) / 2, height - 6, alike ? 'memory of the fullest device, ' + (unit === 2 ** 30 ? 'GiB' : 'MiB') : 'memory of the fullest device, % of its limit', {'text-anchor': 'middle', class: 'soft'}));
    nodes.push(words(4, 10, log ? 'step (log)' : 'step', {class: 'soft'}));
    if (near) nodes.push(shape('line', {x1: x(limit), x2: x(limit), y1: top, y2: bottom, style: 'stroke:var(--mark);stroke-width:2;stroke-dasharray:6 4'}));
    nodes.push(words(near ? x(limit) - 5 : width - right, near ? top + 10 : bottom - 8, (alike ? 'limit ' + bytes(limit) : 'limit') + (near ? '' : ', far to the right →'), {'text-anchor': 'end', style: 'fill:var(--mark)'}));
    // A step: between two points nothing is faster than the smaller one.
    const line = points.map((p, i) => i === 0 ? `M${x(xs[i])} ${y(ys[i])}` : `V${y(ys[i])}H${x(xs[i])}`).join('');
    nodes.push(shape('path', {d: line, style: 'fill:none;stroke:#0072B2;stroke-width:1.5;opacity:.6'}));
    const place = [x(share(chosen)), y(chosen.step)];
    nodes.push(tip(shape('circle', {cx: place[0], cy: place[1], r: 9, style: 'fill:#D55E00'}), `chosen: ${best.family}: ${seconds(chosen.step)}, ${bytes(Math.round(chosen.bytes))} of ${bytes(chosen.limit)}`));
    nodes.push(words(place[0], place[1] + 25, 'chosen', {'text-anchor': place[0] > width - 60 ? 'end' : 'middle'}));
    let lastLabel = [-99, -99];
    points.forEach((p, i) => {
      const fits = p.bytes <= p.limit, here = [x(xs[i]), y(ys[i])];
      nodes.push(tip(shape('circle', {cx: here[0], cy: here[1], r: 4.5, style: `fill:${fits ? '#0072B2' : 'var(--card)'};stroke:#0072B2;stroke-width:1.5`}),
        `${i + 1}: ${p.family}, ${p.detail}: ${seconds(p.step)}, ${bytes(p.bytes)} of ${bytes(p.limit)}`));
      if (Math.hypot(here[0] - lastLabel[0], here[1] - lastLabel[1]) < 18) return;
      lastLabel = here;
      nodes.push(words(here[0] + 7, here[1] - 8, i + 1, {style: 'font-size:11px'}));
    });
    return picture(width, height, `Step time against memory of ${plural(points.length, 'plan')}; the table below has them`, nodes);
  });
  at('front-table').replaceChildren(table([['', true], ['plan', false], ['', false], ['step', true], ['memory', true], ['of the limit', true]], points.map((p, i) => [String(i + 1), p.family, p.detail,
    seconds(p.step), bytes(p.bytes), percent(p.bytes / p.limit)])));
}

show([header, mosaic, timeline, parts, memory, others, front]);
)script";

}  // namespace tessera::cli
