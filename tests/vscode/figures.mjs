// How long VS Code takes, on the screen; usage: figures.mjs PLAN.json
// Figures go to `plan.result`: { name: seconds or [seconds, ...] }.

import fs from "node:fs";
import path from "node:path";
import { withEditor } from "./editor.mjs";
import { STOPPED, Screen } from "./screen.mjs";
import { TensorView } from "./screen/tensor.mjs";
import { openAll, pageOf } from "./screen/views.mjs";

const plan = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const STARTS = 5;
const WINDOWS = 9;
/** ms that a new window is busy with itself. */
const STARTED = 4000;
const STEPS = 30;
const WARM = 3;
/** Nothing more is expected after so many ms without a change. */
const QUIET = 700;

const TEXT = "text, arrow and values";

/** What is seen of a step, by place.  A page of an extension is a frame of its own. */
const PLACES = {
  [TEXT]: ".editor-instance",
  "VS Code's own views": ".debug-variables, .debug-watch, .debug-call-stack, .debug-breakpoints",
};

/** Runs in each frame from its beginning: when the last key went down, and when each place changed last. */
function record(places) {
  const seen = (globalThis.nncdbgSeen = { key: 0, last: {} });
  // VS Code takes `parent` away from its pages.
  const inPage = parent !== self;
  const now = () => performance.timeOrigin + performance.now();
  addEventListener("keydown", () => Object.assign(seen, { key: now(), last: {} }), true);
  const placeOf = (node) => {
    const element = node.nodeType === 1 ? node : node.parentElement;
    if (!element || element.closest(".cursors-layer, .monaco-progress-container")) {
      return undefined;
    }
    return Object.keys(places).find((place) => element.closest(places[place])) ?? "the rest of the window";
  };
  const mark = (place) => (seen.last[place] = now());
  const changed = (changes) => {
    const found = new Set(changes.map((each) => placeOf(each.target)));
    found.forEach((place) => place && mark(inPage ? "pages of the extension" : place));
  };
  const options = { subtree: true, childList: true, attributes: true, characterData: true };
  /** A page of the extension is written into its frame when that is there already. */
  seen.observe = () => new MutationObserver(changed).observe(document, options);
  seen.observe();
  // What is drawn changes no document.
  for (const name of ["putImageData", "drawImage", "fillRect"]) {
    const draw = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...given) {
      if (inPage) {
        mark("pages of the extension");
      }
      return draw.apply(this, given);
    };
  }
}

/** The ms from a key to the last change of each place. */
async function step(page, screen, key) {
  await page.keyboard.press(key);
  const look = async () => {
    const frames = await Promise.all(page.frames().map((each) => each.evaluate(() => globalThis.nncdbgSeen).catch(() => undefined)));
    return { from: frames[0].key, last: Object.assign({}, ...frames.filter(Boolean).map((each) => each.last)) };
  };
  const { from, last } = await screen.until(async () => {
    const seen = await look();
    return seen.last[TEXT] && Date.now() - Math.max(...Object.values(seen.last)) > QUIET && seen;
  }, "a settled screen");
  // A page that has not changed still has what it was told before.
  return Object.fromEntries(Object.entries(last).flatMap(([place, at]) => (at > from ? [[place, at - from]] : [])));
}

/** F5 again and again: the ms until the line where the session stops is shown. */
async function starts(page, screen) {
  const found = [];
  for (let count = 0; count < STARTS; count++) {
    const before = Date.now();
    await page.keyboard.press("F5");
    await screen.see(STOPPED);
    found.push(Date.now() - before);
    await screen.stop();
  }
  return found;
}

/** F10 again and again, the first ones not counted. */
async function steps(page, screen) {
  for (let count = 0; count < WARM; count++) {
    await step(page, screen, "F10");
  }
  const found = [];
  for (let count = 0; count < STEPS; count++) {
    found.push(await step(page, screen, "F10"));
  }
  return found;
}

/** What VS Code says of the activation, in ms, in one window after the other: each has finished its own start. */
async function activations(page, screen, open) {
  const found = [];
  for (let count = 0; count < WINDOWS; count++) {
    await open();
    await page.waitForTimeout(STARTED);
    await screen.openFile("first_steps.nnc");
    await screen.command("Developer: Show Running Extensions");
    const row = page.locator(".runtime-extensions-editor .monaco-list-row", { hasText: /nncdbg/ }).first();
    const said = await screen.until(async () => /Activation: (\d+)ms/.exec(await row.innerText()), "the time of activation");
    found.push(Number(said[1]));
    await page.keyboard.press("Control+w");
    await page.locator(".runtime-extensions-editor").waitFor({ state: "detached" });
    await page.keyboard.press("Control+w");
  }
  return found;
}

/** From the installation of the package to the first stop in a model of the user's: what is pressed, and the ms. */
async function firstStop() {
  const began = Date.now();
  const settings = { "security.workspace.trust.enabled": true };
  const fresh = { vsix: plan.vsix, scratch: path.join(plan.scratch, "fresh"), settings, env: { PIP_NO_CACHE_DIR: "1" } };
  return withEditor(fresh, async ({ page, open }) => {
    const screen = new Screen(page, plan.scratch);
    const pressed = ["Install"];
    await open(plan.own);
    await page.locator(".monaco-dialog-box .monaco-button", { hasText: "Yes, I trust the authors" }).click();
    pressed.push("trust the folder");
    await screen.rows("explorer-folders-view", { hasText: "classifier.onnx" }).first().click();
    pressed.push("the model");
    await screen.see('.tab[data-resource-name="classifier.nnc"]', { timeout: 300_000 });
    await screen.see('.statusbar-item:has-text("NNC graph")');
    const listing = Date.now() - began;
    await page.keyboard.press("F5");
    pressed.push("F5");
    await screen.see(STOPPED);
    const milliseconds = Date.now() - began;
    await screen.stop();
    return { pressed, listing, milliseconds };
  });
}

const first = await firstStop();
await withEditor({ ...plan, settings: { "nncdbg.python": plan.python } }, async ({ page, open }) => {
  await page.addInitScript(record, PLACES);
  const screen = new Screen(page, plan.scratch);
  const figures = { first, activations: await activations(page, screen, () => open(plan.workspace)) };
  await screen.openModel("nodes.onnx", "nodes.nnc");
  await screen.click("graph @main");
  await screen.start();
  await screen.stop();
  figures.start = await starts(page, screen);
  await screen.start();
  figures.steps = await steps(page, screen);
  const view = new TensorView(page, screen);
  await view.open("%large");
  await view.says(".words", /block of \d+ × \d+ elements/);
  await openAll(page);
  await pageOf(page, screen, "li .go");
  await screen.command("nncdbg: Open the Graph in an Editor Tab");
  await pageOf(page, screen, "canvas[role=application]");
  await Promise.all(page.frames().slice(1).map((each) => each.evaluate(() => globalThis.nncdbgSeen?.observe())));
  await screen.click("Relu");
  figures.with_views = await steps(page, screen);
  await page.screenshot({ path: path.join(plan.scratch, "stepped.png") });
  await screen.stop();
  fs.writeFileSync(plan.result, JSON.stringify(figures, null, 1));
});
