// The page of `tiss app --teach`. All state is on the server; `ask` sends one wish and takes the new state.
const find = (selector) => element.querySelector(selector);
const all = (selector) => [...element.querySelectorAll(selector)];
const stage = find('.stage'), canvas = find('.painted'), pen = canvas.getContext('2d', {willReadFrequently: true});
const status = find('.status'), proposal = find('.proposal');
let state = {images: []}, shown = {}, current = null, tool = 'region', view = '', clicked = null, stroke = null, tiles = {};

function say(text, bad = false) { status.textContent = text; status.classList.toggle('bad', bad); }

async function ask(wish) {
  let answer;
  try { answer = await server.act(wish); }
  catch (error) { answer = {error: 'no answer: the terminal that tiss app runs in says why'}; }
  if (answer.error) { say(answer.error, true); return null; }
  if (status.classList.contains('bad')) say('');
  const before = state;
  state = answer;
  draw(before);
  return answer;
}

function draw(before) {
  const ready = state.images.filter((one) => one.ready).length, total = state.images.length;
  find('.count').textContent = ready < total ? `reading ${ready} of ${total} …` : total ? `${total} open` : '';
  if (state.round !== before.round) {
    tiles = {};
    if (state.class_name) find('#teach-class').value = state.class_name;
    if (!find('#teach-name').value) find('#teach-name').value = state.class_name;
    find('.result').innerHTML = state.result;
    find('.save').hidden = !state.result;
  }
  const box = find('.tiles'), names = new Set(state.images.map((one) => one.name));
  [...box.children].filter((tile) => !names.has(tile.dataset.name)).forEach((tile) => tile.remove());
  state.images.forEach((one, place) => drawTile(box, one, place));
  const one = state.images.find((one) => one.name === current);
  all('[data-act]').forEach((button) => { button.disabled = !one; });
  find('[data-act=undo]').disabled = !one || !one.undo;
  find('[data-act=start]').disabled = !one || !state.round;
  all('[data-view=now],[data-view=changed]').forEach((button) => { button.disabled = !state.round; });
}

function drawTile(box, one, place) {
  let tile = [...box.children].find((tile) => tile.dataset.name === one.name);
  if (!tile) {
    tile = document.createElement('div');
    tile.className = 'tile';
    tile.dataset.name = one.name;
    tile.innerHTML = '<div class="pair"><div></div><div></div></div><b></b><p></p>' +
      '<button class="close" title="Close">×</button>';
    tile.addEventListener('click', () => open(one.name));
    tile.querySelector('.close').addEventListener('click', (event) => {
      event.stopPropagation();
      ask({do: 'close', image: one.name}).then(() => { if (current === one.name) start(); });
    });
    box.insertBefore(tile, box.children[place] || null);
  }
  tile.classList.toggle('on', one.name === current);
  tile.querySelector('b').textContent = tile.title = one.name;
  tile.querySelector('p').textContent = [one.painted, one.changed].filter(Boolean).join(' · ') || '\u00a0';
  const key = `${one.ready} ${state.round}`;
  if (tiles[one.name] !== key) {
    tiles[one.name] = key;
    ask({do: 'tile', image: one.name}).then((found) => {
      if (!found) return;
      [...tile.querySelector('.pair').children].forEach((half, i) => { half.innerHTML = found.pair[i] || ''; });
      if (current === one.name && one.ready) open(one.name);
    });
  }
}

async function open(name) {
  if (current !== name) drop();
  current = name;
  const found = await ask({do: 'show', image: name});
  if (!found || current !== name) return;
  shown = found;
  find('.empty').hidden = true;
  find('.photo').src = found.photo;
  find('.photo').hidden = false;
  find('.legend').innerHTML = found.legend || '';
  look();
  await put(found.paint);
}

function look() {
  const answer = find('.answer');
  answer.hidden = !shown[view];
  if (shown[view]) answer.src = shown[view];
  answer.classList.toggle('changed', view === 'changed');
  find('.photo').classList.toggle('dim', view === 'changed');
  all('[data-view]').forEach((button) => button.classList.toggle('on', button.dataset.view === view));
}

function load(source) {
  return new Promise((done) => { const image = new Image(); image.onload = () => done(image); image.src = source; });
}

async function put(paint) {
  const image = paint ? await load(paint) : null;
  if (canvas.width !== shown.size[0] || canvas.height !== shown.size[1]) [canvas.width, canvas.height] = shown.size;
  pen.globalCompositeOperation = 'source-over';
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (image) pen.drawImage(image, 0, 0);
}

async function change(wish) {
  const name = current, found = await ask({...wish, image: name});
  if (found && current === name) await put(found.paint);
}

// what is on the canvas stays there: the next stroke may have begun when the answer comes
const send = () => ask({do: 'paint', image: current, mask: canvas.toDataURL('image/png')});

function place(event) {
  const box = find('.photo').getBoundingClientRect();
  return [(event.clientX - box.left) / box.width * canvas.width, (event.clientY - box.top) / box.height * canvas.height];
}

async function propose() {
  const found = await ask({do: 'propose', image: current, x: clicked[0], y: clicked[1], size: find('.likeness').value});
  if (!found || !clicked) return;
  proposal.src = found.proposal;
  proposal.hidden = find('.pending').hidden = false;
}

function drop() {
  clicked = null;
  proposal.hidden = find('.pending').hidden = true;
}

async function settle(how) {
  const image = proposal;
  if (how && !image.hidden) {
    const layer = new OffscreenCanvas(canvas.width, canvas.height), draw = layer.getContext('2d');
    draw.drawImage(image, 0, 0);
    draw.globalCompositeOperation = 'source-in';
    draw.fillStyle = shown.colour;
    draw.fillRect(0, 0, canvas.width, canvas.height);
    pen.globalCompositeOperation = how === 'add' ? 'source-over' : 'destination-out';
    pen.drawImage(layer, 0, 0);
    drop();
    await send();
  } else drop();
}

function line(from, to) {
  pen.globalCompositeOperation = tool === 'eraser' ? 'destination-out' : 'source-over';
  pen.strokeStyle = shown.colour;
  pen.lineWidth = find('.brush').value * canvas.width / find('.photo').clientWidth;
  pen.lineCap = 'round';
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}

stage.addEventListener('pointerdown', (event) => {
  if (!current || event.button || event.target.closest('button')) return;
  event.preventDefault();
  if (tool === 'region') { clicked = place(event).map(Math.floor); propose(); return; }
  stage.setPointerCapture(event.pointerId);
  stroke = place(event);
  line(stroke, stroke);
});
stage.addEventListener('pointermove', (event) => {
  if (!stroke) return;
  const to = place(event);
  line(stroke, to);
  stroke = to;
});
stage.addEventListener('pointerup', () => { if (stroke) { stroke = null; send(); } });

all('[data-tool]').forEach((button) => button.addEventListener('click', () => {
  tool = button.dataset.tool;
  drop();
  all('[data-tool]').forEach((other) => other.classList.toggle('on', other === button));
  find('label.region').hidden = tool !== 'region';
  find('label.width').hidden = tool === 'region';
}));
all('[data-view]').forEach((button) => button.addEventListener('click', () => { view = button.dataset.view; look(); }));
all('[data-pending]').forEach((button) => button.addEventListener('click', () => settle(button.dataset.pending)));
all('[data-act]').forEach((button) => button.addEventListener('click', () => {
  const act = button.dataset.act;
  drop();
  change(act === 'none' ? {do: 'paint', mask: ''} : act === 'clear' ? {do: 'paint', mask: null} : {do: act});
}));
find('.likeness').addEventListener('input', () => { if (clicked) propose(); });
document.addEventListener('keydown', (event) => {
  if (event.target.matches('input[type=text]') || !current) return;
  if (event.key === 'Enter' && clicked) settle('add');
  else if (event.key === 'Escape') settle('');
  else if (event.key === 'z' && (event.ctrlKey || event.metaKey)) change({do: 'undo'});
});

find('.add').addEventListener('click', () => find('.files').click());
find('.files').addEventListener('change', async (event) => {
  for (const file of event.target.files) {
    say(`opening ${file.name} …`);
    let path;
    try { path = (await upload(file)).path; } catch (error) { say(`${file.name}: too large to upload`, true); continue; }
    if (!await ask({do: 'open', path})) break;
    say('');
    if (!current) await open(state.images[state.images.length - 1].name);
  }
  event.target.value = '';
  watchReading();
});
find('.teach-it').addEventListener('click', async (event) => {
  event.target.disabled = true;
  say('learning …');
  const begin = performance.now();
  if (await ask({do: 'teach', class_name: find('#teach-class').value})) {
    if (!view) view = 'now';
    await open(current || state.images[0].name);
    say(`learned in ${((performance.now() - begin) / 1000).toFixed(1)} s`);
  }
  event.target.disabled = false;
});
find('.save-it').addEventListener('click', async () => {
  say('saving …');
  const found = await ask({do: 'save', name: find('#teach-name').value.trim()});
  if (found) say(found.saved);
});

let reading = false;
async function watchReading() {
  if (reading) return;
  reading = true;
  while (state.images.some((one) => !one.ready)) {
    await new Promise((done) => setTimeout(done, 700));
    if (!await ask({})) break;
  }
  reading = false;
}

async function start() {
  current = null;
  if (!await ask({})) return;
  find('.empty').hidden = state.images.length > 0;
  find('.photo').hidden = !state.images.length;
  if (state.images.length) await open(state.images[0].name);
  watchReading();
}
start();
