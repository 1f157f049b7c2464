// The views in the panel: statistics, the explained value, graph map, timeline.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";

/** Returns the pane of a view by its title. */
function pane(page, title) {
  return page.locator(".pane", { has: page.locator(`.pane-header[aria-label^="${title}"]`) }).first();
}

/** Opens a view of the container if it is folded, and folds the others, so that it has room. */
export async function only(page, title) {
  await openContainer(page);
  await page.locator(`.panel .pane-header[aria-label^="${title}"]`).waitFor();
  await fold(page, (label) => label.startsWith(title));
}

/** Opens all views of the container. */
export async function openAll(page) {
  await openContainer(page);
  await page.locator('.panel .pane-header[aria-label^="Timeline"]').waitFor();
  await fold(page, () => true);
}

async function openContainer(page) {
  const tab = page.locator('.part.panel .composite-bar .action-item:has(.action-label[aria-label^="nncdbg"])').first();
  await tab.waitFor();
  if (!(await tab.getAttribute("class")).includes("checked")) {
    await tab.click();
  }
}

/** Opens the views with a wanted label, and folds the others. */
async function fold(page, isWanted) {
  for (const header of await page.locator(".panel .pane-header").all()) {
    const open = (await header.getAttribute("aria-expanded")) === "true";
    if (open !== isWanted((await header.getAttribute("aria-label")) ?? "")) {
      await header.click();
    }
  }
}

/** Runs to the origin of the NaN of the example, and takes one more step. */
export async function stepPastNaN(page, screen) {
  await screen.debug("nan_softmax.nnc", "Softmax");
  await screen.continueTo("%terms");
  // The program is after the statement that it has stopped at.
  await page.keyboard.press("F10");
  await screen.stoppedAt("%e = ");
  await page.keyboard.press("Alt+F10");
  await screen.stoppedAt("%sum = ");
}

/** Returns the page of a view, once an element of `selector` is visible. */
export async function pageOf(page, screen, selector) {
  return screen.until(async () => {
    for (const frame of page.frames()) {
      if (await frame.locator(selector).first().isVisible().catch(() => false)) {
        return frame;
      }
    }
  }, `a page with ${selector}`);
}

const THEMES = {
  dark: "Default Dark Modern",
  light: "Default Light Modern",
  contrast: "Default High Contrast",
  "contrast-light": "Default High Contrast Light",
};

/** Saves pictures in each theme, and at 200 %. */
export async function pictures(page, screen, settings, name) {
  for (const [suffix, theme] of Object.entries(THEMES)) {
    settings({ "workbench.colorTheme": theme });
    const kind = { dark: "vs-dark", light: "vs", contrast: "hc-black", "contrast-light": "hc-light" }[suffix];
    await screen.see(`.monaco-workbench.${kind}`);
    await screen.picture(`${name}-${suffix}`);
  }
  settings({ "workbench.colorTheme": THEMES.dark });
  await screen.see(".monaco-workbench.vs-dark");
  const size = page.viewportSize();
  await page.setViewportSize({ width: size.width / 2, height: size.height / 2 });
  await screen.picture(`${name}-twice-as-large`);
  await page.setViewportSize(size);
}

const LONG = "/model/decoder/layers.3/self_attn/attention/query_key_value/dense_projection/MatMul_1_output_";

/** Names as exporters write them. */
const NAMED = `#nncdbg 1
opset 18

graph @main(%x: f32[4,64]) -> (%y: f32[4,64]) {
  %${LONG}0: f32[4,64] = Mul(%x, 1234.5678)
  %${LONG}1: f32[4,64] = Log(%${LONG}0)
  %y: f32[4,64] = Neg(%${LONG}1)
  return %y
}
`;

/** Moves a view into its own side bar entry, and drags the side bar to a width in pixels. */
async function inSideBar(page, screen, title, width) {
  await screen.command("View: Move View");
  for (const choice of [title, "New Side Bar Entry"]) {
    await page.locator(".quick-input-list .monaco-list-row", { hasText: choice }).first().click();
  }
  // The only view of an entry has no header of its own.
  await page.locator(`.part.sidebar .title-label:has-text("${title}")`).waitFor();
  const bar = page.locator(".part.sidebar");
  const { x, y, width: before, height } = await bar.boundingBox();
  await page.mouse.move(x + before, y + height / 2);
  await page.mouse.down();
  await page.mouse.move(x + width, y + height / 2, { steps: 5 });
  await page.mouse.up();
  await screen.until(async () => Math.abs((await bar.boundingBox()).width - width) < 3, `a side bar of ${width} pixels`);
}

const place = (page, line) => page.locator(".statusbar-item", { hasText: `Ln ${line}, Col` });

export const tests = {
  async "the timeline shows marks, edits and branches, and a click goes there"({ page, screen, open, settings }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await only(page, "Timeline");
    const timeline = pane(page, "Timeline");
    const rows = async () => (await timeline.locator(".monaco-list-row").allInnerTexts()).map((each) => each.replace(/\s+/g, " "));
    const row = (text) => timeline.locator(".monaco-list-row", { hasText: text }).first();
    await screen.until(async () => (await rows()).some((each) => /^Now\s*line 10/.test(each)), "the current position");

    await page.keyboard.press("F10");
    await screen.until(async () => (await rows()).some((each) => /^Now\s*line 11/.test(each)), "the next position");
    await row("Now").hover();
    await row("Now").locator('[aria-label^="Mark This Moment"]').click();
    await screen.see(".quick-input-widget input");
    await page.keyboard.type("after the layer");
    await page.keyboard.press("Enter");
    await row("after the layer").waitFor();

    await page.keyboard.press("F10");
    await screen.stoppedAt("while @sharpen");
    await screen.enter("set %h = 0");
    await screen.expectAnswer(/branch 1/);
    await only(page, "Timeline");
    await row("%h set").waitFor();
    // The branch that was left stays open.
    await screen.until(async () => (await rows()).some((each) => /^Branch left here/.test(each)), "the last position of the branch");
    await pictures(page, screen, settings, "timeline");
    await row("after the layer").click();
    await screen.stoppedAt("%scores");
    await screen.until(async () => (await rows()).some((each) => /^Now\s*line 11/.test(each)), "the new position");
    await screen.stop();
    await timeline.getByText("No graph is being debugged").waitFor();
  },

  async "the statistics show the abnormal first, and a click goes to the line"({ page, screen, open, settings }) {
    await open();
    await stepPastNaN(page, screen);
    await only(page, "Statistics");
    const frame = await pageOf(page, screen, "li.rank0");
    assert.equal(await frame.evaluate(() => typeof globalThis.dagre), "undefined", "only pages with a graph load dagre");
    const rows = frame.locator("li");
    const abnormal = async () => (await screen.texts(frame.locator("li.rank0"))).join("; ");
    await screen.until(async () => /^%terms [^;]*5 NaN[^;]*; %logq [^;]*5 -Inf[^;]*$/.test(await abnormal()), "both abnormal values");
    await pictures(page, screen, settings, "statistics");
    await rows.nth(1).locator(".go").click();
    await place(page, 21).waitFor();
    await rows.nth(0).locator(".go").focus();
    await page.keyboard.press("ArrowDown");
    assert.match(await frame.evaluate(() => document.activeElement.getAttribute("aria-label")), /^%logq, @entropy/);
    await screen.stop();
  },

  async "Explain Value follows the most abnormal value to where its NaN originates"({ page, screen, open, settings }) {
    await open();
    await stepPastNaN(page, screen);
    await only(page, "Explain Value");
    const frame = await pageOf(page, screen, ".cause");
    await frame.locator("header b", { hasText: "%terms" }).waitFor();
    await frame.locator(".cause", { hasText: "NaN originates here" }).first().waitFor();
    await pictures(page, screen, settings, "explain");
    await frame.locator(".statement").nth(1).click();
    const line = /line (\d+)/.exec(await frame.locator(".where").nth(1).innerText())[1];
    await place(page, line).waitFor();
    await frame.locator(".name", { hasText: "%logq" }).click();
    await screen.until(async () => (await frame.locator("header b").innerText()) === "%logq", "%logq is explained");
    await frame.locator("header button").click();
    await screen.until(async () => (await frame.locator("header b").innerText()) === "%terms", "the most abnormal again");
    await screen.stop();
  },

  async "in a loop the statistics have a line over its iterations"({ page, screen, open }) {
    await open();
    await screen.debugTo("refine_loop.nnc", "%better = ");
    await only(page, "Statistics");
    const frame = await pageOf(page, screen, "li .go");
    const visits = async () => {
      const labels = (sparks) => sparks.map((each) => each.getAttribute("aria-label"));
      const [label] = await frame.locator('li:has([aria-label^="%sum"]) .spark').evaluateAll(labels);
      return Number(label ? /over (\d+) visits/.exec(label)[1] : 1);
    };
    const before = await visits();
    await page.keyboard.press("F5");
    await screen.until(async () => (await visits()) === before + 1, "one iteration more");
    await screen.picture("statistics-loop");
    await page.locator('.debug-toolbar [aria-label^="Reverse"]').click();
    await screen.until(async () => (await visits()) === before, "one iteration less");
    await screen.stop();
  },

  async "the graph map highlights the current op and values with NaN, and opens layers"({ page, screen, open, settings }) {
    await open();
    await stepPastNaN(page, screen);
    await only(page, "Graph Map");
    const frame = await pageOf(page, screen, ".node.current");
    assert.equal(await frame.evaluate(() => typeof globalThis.dagre), "object");
    await frame.locator('.node.current[aria-label^="ReduceSum, writes %sum, line 23"]').waitFor();
    await frame.locator('.node.bad[aria-label^="Mul, writes %terms"][aria-label*="contains NaN"]').waitFor();
    await frame.locator(".edge.bad").first().waitFor({ state: "attached" });
    await frame.locator('.node[aria-label^="@normalize"] .opens').click();
    await frame.locator('.node[aria-label^="Softmax"]').waitFor();
    await pictures(page, screen, settings, "map");
    await frame.locator('.button[aria-label^="@normalize"]').focus();
    await page.keyboard.press("Enter");
    await frame.locator('.node[aria-label^="@normalize"]').waitFor();
    await frame.locator('.node[aria-label^="Log,"]').click();
    await place(page, 21).waitFor();
    await page.locator('.debug-toolbar [aria-label^="Step Over"]').click();
    await frame.locator('.node.current[aria-label^="Neg,"]').waitFor();
    await screen.stop();
  },

  async "a loop in the graph map has its iteration, open and closed"({ page, screen, open }) {
    await open();
    await screen.debugTo("refine_loop.nnc", "%better = ");
    await only(page, "Graph Map");
    const frame = await pageOf(page, screen, ".node.current");
    await frame.locator(".edge.carried").first().waitFor({ state: "attached" });
    const [title, before] = /@newton #(\d+)/.exec(await frame.locator(".cluster.loop").textContent());
    await page.keyboard.press("F5");
    const after = title.replace(before, Number(before) + 1);
    await frame.locator(".cluster.loop", { hasText: after }).waitFor();
    await screen.picture("map-loop");
    await frame.locator('.button[aria-label^="@newton"]').click();
    await frame.locator(`.node.loop.current[aria-label^="${after}"]`).waitFor();
    await screen.stop();
  },

  // Keep this test last: the next window may open before VS Code has saved the place of the view.
  async "statistics of values with long names stay whole in a side bar of 207 pixels"({ page, screen, open, settings, workspace }) {
    fs.writeFileSync(path.join(workspace, "named.nnc"), NAMED);
    await open();
    await screen.debug("named.nnc", "= Neg");
    await screen.continueTo("= Log");
    await page.locator(".exception-widget").waitFor();
    await inSideBar(page, screen, "Statistics", 207);
    const frame = await pageOf(page, screen, "li .go");
    const cut = await frame.locator("li").evaluateAll((rows) =>
      rows.flatMap((row) => [row, ...row.querySelectorAll(".figures, .type, .why")].filter((each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth).map((each) => each.textContent)),
    );
    assert.deepEqual(cut, []);
    const heights = await frame.locator("li .head b").evaluateAll((names) => names.map((name) => name.clientHeight));
    assert.ok(heights.every((height) => height < 24), "a name has one line");
    assert.match(await frame.locator("li").first().innerText(), /NaN.*min\s+-?[\d.]+ mean\s+-?[\d.]+ max\s+-?[\d.]+ std\s+-?[\d.]+/s);
    await pictures(page, screen, settings, "statistics-narrow");
    await screen.stop();
  },
};
