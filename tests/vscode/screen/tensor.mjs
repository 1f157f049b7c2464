// The tensor view on the screen.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";

const GRAPH = `#nncdbg 1
opset 18

graph @main(%x: f32[1024,1024], %image: f32[1,3,48,64]) -> (%y: f32[1024,1024]) {
  %words: str[2] = ["plain", "größe"]
  %empty: f32[0,3] = []
  %twice: f32[1024,1024] = Mul(%x, 2.0)
  %signal: f32[1024] = ReduceMean(%twice, [0], keepdims=0)
  %features: f32[1,3,48,64] = Sin(%image)
  %small: f32[2,3] = Slice(%x, [0,0], [2,3])
  %double: f32[2,3] = Mul(%small, 2.0)
  %rows: seq(f32[1,3]) = SplitToSequence(%small, axis=0)
  %a/very/long/name/of/a/value/as/exporters/write/them/layers.11.attention.self.query: f32[2,3] = Neg(%double)
  %y: f32[1024,1024] = Neg(%twice)
  return %y
}
`;

/** One NaN and one infinity among a million elements; and a picture of three colours. */
const INPUTS = `
import numpy as np
rows, columns = np.meshgrid(np.linspace(-3, 3, 1024), np.linspace(-3, 3, 1024), indexing="ij")
x = np.sin(rows * 2) * np.exp(-columns ** 2 / 4)
x[701, 333], x[200, 800] = np.nan, np.inf
np.save("x.npy", x.astype(np.float32))
down, right = np.meshgrid(np.linspace(0, 1, 48), np.linspace(0, 1, 64), indexing="ij")
np.save("image.npy", np.stack([down, right, 1 - down])[None].astype(np.float32))
`;

function prepare(workspace, python) {
  fs.writeFileSync(path.join(workspace, "tensors.nnc"), GRAPH);
  execFileSync(python, ["-c", INPUTS], { cwd: workspace });
  const inputs = { x: "x.npy", image: "image.npy" };
  const launch = { type: "nncdbg", request: "launch", name: "tensors", program: "tensors.nnc", inputs, stopOnEntry: true };
  fs.mkdirSync(path.join(workspace, ".vscode"), { recursive: true });
  fs.writeFileSync(path.join(workspace, ".vscode", "launch.json"), JSON.stringify({ version: "0.2.0", configurations: [launch] }));
}

/** The visible tensor view. */
export class TensorView {
  constructor(page, screen) {
    this.page = page;
    this.screen = screen;
    this.frame = page.frameLocator("iframe.webview:visible").frameLocator("#active-frame");
  }

  /** Opens the view of an expression by the palette. */
  async open(expression) {
    await this.screen.command("nncdbg: View Tensor");
    const input = this.page.locator('.quick-input-widget input[aria-label*="Which value"], .quick-input-widget input').first();
    await this.screen.see('.quick-input-message:has-text("Which value?")');
    await input.fill(expression);
    await input.press("Enter");
    await this.expectText("h1", new RegExp(`^${expression.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`));
  }

  async expectText(selector, pattern) {
    const place = this.frame.locator(selector).first();
    // A page that opens or closes has no frame for a moment.
    const text = () => place.innerText({ timeout: 1000 }).catch(() => "");
    let seen = "";
    await this.screen.until(async () => pattern.test((seen = await text())), `${pattern} in ${selector}`);
    return seen;
  }

  /** Returns the bounding box of an element, once it is stable. */
  async settled(selector) {
    let last;
    return this.screen.until(async () => {
      const before = JSON.stringify(last);
      last = await this.frame.locator(selector).first().boundingBox();
      await this.page.waitForTimeout(200);
      return JSON.stringify(last) === before && last;
    }, `a stable ${selector}`);
  }

  async choose(label, option) {
    await this.frame.getByLabel(label, { exact: true }).selectOption(option);
  }

  async press(button) {
    await this.frame.getByRole("button", { name: button, exact: true }).click();
  }
}

const NEXT = "Go to the next NaN or Inf (N)";
const CSV = "Save the visible rows and columns as a CSV file";
const PNG = "Save the picture as a PNG file";
const FOLLOW = "Update the view at each step";

/** Steps over statements until the arrow is in the line with this text. */
async function stepTo(page, screen, text) {
  for (let steps = 0; steps < 20 && !(await screen.currentLine())?.includes(text); steps++) {
    const before = await screen.currentLine();
    await page.keyboard.press("F10");
    await screen.until(async () => ![undefined, before].includes(await screen.currentLine()), "the next line");
  }
}

export const tests = {
  async "a value of a million elements opens beside the listing, and its NaN is visible"({ page, screen, open, workspace, python }) {
    prepare(workspace, python);
    await open();
    await screen.debug("tensors.nnc", "Mul(%x");
    // The first step stops in the same line: its operand has a NaN.
    await screen.pressUntil("F10", ".exception-widget", "the stop at the NaN of the input");
    await screen.pressUntil("F10", screen.rows("debug-variables", { hasText: "%twice" }), "the value of the statement");
    await screen.rows("debug-variables", { hasText: "%twice" }).first().click({ button: "right" });
    const entry = page.locator(".monaco-menu .action-label", { hasText: "View Tensor" }).last();
    // A menu that has just opened ignores a click.
    await screen.again(() => entry.click({ timeout: 1000 }).catch(() => undefined), "iframe.webview:visible", "the view");
    const view = new TensorView(page, screen);
    await view.expectText(".type", /^f32\[1024,1024\]$/);
    await view.expectText(".statistics", /nan 1 · inf 1/);
    assert.match(await view.expectText(".legend", /NaN/), /NaN 1\s+\+Inf 1/);
    await view.expectText(".words", /block of 4 × 4 elements/);
    const canvas = view.frame.locator("figure canvas");
    const { width, height } = await view.settled("figure canvas");
    const at = (row, column) => ({ x: 48 + ((column + 0.5) / 1024) * (width - 54), y: 6 + ((row + 0.5) / 1024) * (height - 27) });
    await canvas.click({ position: at(701, 333) });
    await view.expectText(".readout", /^\[700:704, 332:336\] .*NaN$/);
    await page.keyboard.press("ArrowRight");
    await view.expectText(".readout", /^\[700:704, 336:340\] +-?\d\.\d+$/);
    await screen.picture("tensor-heat");
    await page.keyboard.press("ArrowLeft");
    for (const block of [/block of 2 × 2/, /Every element/, /Every element/, /Every element/, /Every element/]) {
      await page.keyboard.press("+");
      await view.expectText(".words", block);
    }
    await view.expectText(".readout", /^\[700, 332\] +1\.2\d+$/);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowRight");
    await view.expectText(".readout", /^\[701, 333\] +nan$/);
    await screen.picture("tensor-zoomed");
    await screen.stop();
    await view.expectText(".when", /The session has ended/);
  },

  async "each kind of value has a view"({ page, screen, open, workspace, python }) {
    prepare(workspace, python);
    await open();
    await screen.debug("tensors.nnc", "Mul(%x");
    await stepTo(page, screen, "%y:");
    const view = new TensorView(page, screen);
    await view.open("%features");
    await view.expectText(".words", /Every element is shown/);
    await screen.picture("tensor-image");
    await view.choose("View", "channels");
    await view.expectText("figcaption", /^0$/);
    await screen.picture("tensor-channels");
    await view.choose("View", "heat");
    await view.frame.getByLabel("Index of axis 1 as a number").fill("2");
    await page.keyboard.press("Enter");
    await screen.until(async () => (await view.frame.locator("figure canvas").count()) === 1, "one picture");
    await view.frame.locator("figure canvas").focus();
    await page.keyboard.press("ArrowDown");
    await view.expectText(".readout", /^\[0, 2, 1, 0\] /);
    await page.keyboard.press("PageUp");
    await view.expectText(".statistics", /std/);
    await page.keyboard.press("ArrowDown");
    await view.expectText(".readout", /^\[0, 1, 2, 0\] /);
    await screen.picture("tensor-slices");
    const library = () => view.frame.locator("body").evaluate(() => typeof globalThis.uplot);
    assert.equal(await library(), "undefined", "the plotting library is loaded with the first plot");
    await view.open("%signal");
    await view.frame.locator(".uplot canvas").waitFor();
    assert.equal(await library(), "object");
    await view.expectText(".legend", /NaN 1/);
    await screen.picture("tensor-line");
    await view.open("%twice");
    await view.choose("View", "histogram");
    await view.expectText(".words", /64 bins/);
    await view.expectText(".legend", /NaN 1\s+\+Inf 1/);
    await screen.picture("tensor-histogram");
    await view.choose("View", "table");
    await view.expectText(".table .head", /0\s+1\s+2/);
    await screen.picture("tensor-table");
    await view.open("%words");
    await view.expectText(".table", /größe/);
    await view.open("%empty");
    await view.expectText(".message", /f32\[0,3\] has no elements/);
    await view.open("%rows");
    await view.expectText(".message", /not a tensor/);
    await screen.picture("tensor-sequence");
    await view.open("mean(%small)");
    await view.expectText(".table", /-?\d\.\d+/);
    await view.open("%y");
    await view.expectText(".message", /not computed yet/);
    await screen.picture("tensor-not-yet");
    await page.keyboard.press("F10");
    await view.expectText(".statistics", /nan 1/);
    await screen.stop();
  },

  async "Next NaN visits each NaN and Inf, in the picture and in the table"({ page, screen, open, workspace, python }) {
    prepare(workspace, python);
    await open();
    await screen.debug("tensors.nnc", "Mul(%x");
    await stepTo(page, screen, "%y:");
    const view = new TensorView(page, screen);
    await view.open("%twice");
    await view.expectText(".statistics", /nan 1 · inf 1/);
    for (const place of [/^\[200, 800\] +inf$/, /^\[701, 333\] +nan$/, /^\[200, 800\] +inf$/]) {
      await view.press(NEXT);
      await view.expectText(".readout", place);
    }
    await view.expectText(".words", /Every element is shown/);
    await screen.picture("tensor-next-nan");
    await view.choose("View", "table");
    await view.press(NEXT);
    await view.expectText('.cell[aria-selected="true"]', /^nan$/);
    await view.open("%image");
    await view.press(NEXT);
    await view.expectText(".message", /All elements are finite/);
    await screen.stop();
  },

  async "pictures keep their shape, scales may be logarithmic, and zeros have an axis"({ page, screen, open, workspace, python }) {
    prepare(workspace, python);
    await open();
    await screen.debug("tensors.nnc", "Mul(%x");
    await stepTo(page, screen, "%y:");
    const view = new TensorView(page, screen);
    await view.open("%x[:, 0:16]");
    const { width, height } = await view.settled("figure canvas");
    assert.ok(Math.abs((height - 33) / (width - 54) - 64) < 1, `${width} x ${height} is 16 columns of 1024 rows`);
    assert.ok(await view.frame.locator(".pictures").evaluate((each) => each.scrollHeight > each.clientHeight), "the picture can be scrolled");
    await screen.picture("tensor-long");
    await view.open("exp(%small * 8)");
    await view.choose("Scale", "log");
    await screen.picture("tensor-log");
    await view.open("%image[0, 0, 0] * 0");
    await view.settled(".u-over");
    await screen.picture("tensor-zeros");
    await view.open("%x[0:64, 0:64] * 1e-30 - 1e-21");
    await view.choose("Compare with", "expression");
    await view.frame.getByLabel("Expression to compare with").fill("%x[650:714, 300:364] * 1e-30");
    await page.keyboard.press("Enter");
    await view.expectText(".distance", /NaN on one side: 1 · largest difference/);
    await view.expectText(".legend", /difference: NaN 1/);
    const heights = await view.frame.locator("figure canvas").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().height));
    assert.equal(heights.length, 3);
    assert.ok(heights.every((each) => each >= 96) && new Set(heights).size === 1, heights.join());
    const tops = await view.frame.locator("figure").evaluateAll((all) => all.map((each) => each.getBoundingClientRect().top));
    assert.equal(new Set(tops).size, 1, "one below the other");
    await screen.picture("tensor-beside");
    await screen.stop();
  },

  async "rows and columns are saved as CSV, and the picture as PNG"({ page, screen, open, workspace, python }) {
    prepare(workspace, python);
    await open();
    await screen.debug("tensors.nnc", "Mul(%x");
    await stepTo(page, screen, "%y:");
    const view = new TensorView(page, screen);
    for (const [expression, button, name] of [["%small * 0 + 1.5", CSV, "rows.csv"], ["%words", CSV, "words.csv"], ["%features", PNG, "features.png"]]) {
      await view.open(expression);
      await view.settled("header");
      await view.press(button);
      const input = page.locator(".quick-input-widget input:visible");
      // The dialog writes its own path first.
      await screen.until(async () => /\.(csv|png)$/.test(await input.inputValue()), "the dialog");
      await input.fill(path.join(workspace, name));
      await page.keyboard.press("Enter");
      await screen.until(() => fs.existsSync(path.join(workspace, name)), name);
    }
    assert.equal(fs.readFileSync(path.join(workspace, "rows.csv"), "utf8"), "1.5,1.5,1.5\n1.5,1.5,1.5\n");
    assert.equal(fs.readFileSync(path.join(workspace, "words.csv"), "utf8"), "plain\ngröße\n");
    assert.deepEqual([...fs.readFileSync(path.join(workspace, "features.png")).subarray(1, 4)], [..."PNG"].map((each) => each.charCodeAt(0)));
    await screen.stop();
  },

  async "an edited element is shown in all views, and a pinned view keeps its stop"({ page, screen, open, workspace, python }) {
    prepare(workspace, python);
    await open();
    await screen.debug("tensors.nnc", "Mul(%x");
    await stepTo(page, screen, "%y:");
    const view = new TensorView(page, screen);
    await view.open("%small");
    await view.choose("View", "table");
    await view.frame.locator(".cell").nth(4).dblclick();
    await view.frame.locator(".cell input").fill("41.5");
    await page.keyboard.press("Enter");
    await view.expectText(".table", /41\.5/);
    await view.expectText(".statistics", /max 41\.5/);
    await view.open("%double");
    await view.expectText(".statistics", /max 83/);
    await view.press(FOLLOW);
    await view.choose("View", "table");
    await view.expectText(".table", /83/);
    await page.locator(".tab", { hasText: "tensors.nnc" }).click();
    await page.keyboard.press("F10");
    await view.expectText(".when", /from another stop/);
    await screen.picture("tensor-unpinned");
    await screen.stop();
  },

  async "a value is compared with its previous iteration, with another value, and with the other branch"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "%h = @layer");
    await stepTo(page, screen, "%scores = MatMul");
    await page.keyboard.press("F10");
    await screen.stoppedAt("while @sharpen");
    await page.keyboard.press("F11");
    const view = new TensorView(page, screen);
    for (let round = 0; round < 2; round++) {
      await stepTo(page, screen, "next %s");
      await page.keyboard.press("F10");
      await screen.stoppedAt("%p = Softmax");
    }
    await view.open("%s");
    await view.choose("Compare with", "previous");
    await view.expectText(".distance", /6 of 6 elements differ · largest difference \d\.\d+ · relative 0\.3333/);
    assert.deepEqual(await view.frame.locator("figcaption").allInnerTexts(), ["this value", "other value", "difference"]);
    await screen.picture("tensor-previous");
    await view.choose("Compare with", "expression");
    await view.frame.getByLabel("Expression to compare with").fill("%s * 1");
    await page.keyboard.press("Enter");
    await view.expectText(".distance", /All elements are equal/);
    await view.choose("Compare with", "branch");
    await view.expectText(".message", /only one branch/);
    await view.choose("View", "table");
    await view.choose("Show", "here");
    await view.expectText(".distance", /only one branch/);
    await view.settled(".cell");
    await view.frame.locator(".cell").first().dblclick();
    await view.frame.locator(".cell input").fill("7");
    await page.keyboard.press("Enter");
    await view.expectText(".distance", /1 of 6 elements differ · .* · worst at \[0, 0\]/);
    await screen.stop();
  },

  async "a hidden view is restored, and a view that follows continues in the next session"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await stepTo(page, screen, "MatMul");
    const view = new TensorView(page, screen);
    await view.open("%h");
    await view.expectText(".when", /^Values at @main, line 11\.$/);
    const statistics = await view.expectText(".statistics", /8 elements/);
    await view.press(FOLLOW);
    await page.keyboard.press("Control+1");
    await stepTo(page, screen, "while");
    await view.expectText(".when", /^Values at @main, line 11\. These values are from another stop\.$/);
    await view.open("%x");
    await page.locator(".tab", { hasText: "%h" }).click();
    await view.expectText("h1", /^%h$/);
    await view.expectText(".when", /^Values at @main, line 11\. These values are from another stop\.$/);
    assert.equal(await view.expectText(".statistics", /8 elements/), statistics);
    await view.press(FOLLOW);
    await view.expectText(".when", /^Values at @main, line 12\.$/);
    await screen.stop();
    await view.expectText(".when", /^Values at @main, line 12\. The session has ended\. The view updates in the next session\.$/);
    await page.keyboard.press("Control+1");
    await screen.start();
    await view.expectText(".message", /%h/);
    await stepTo(page, screen, "MatMul");
    await view.expectText(".when", /^Values at @main, line 11\.$/);
    assert.equal(await view.expectText(".statistics", /8 elements/), statistics);
    await screen.stop();
  },

  async "the view is readable in each theme and at twice the size"({ page, screen, open, settings, workspace, python }) {
    prepare(workspace, python);
    settings({ "workbench.colorTheme": "Default Dark Modern" });
    await open();
    await screen.debug("tensors.nnc", "Mul(%x");
    await stepTo(page, screen, "%y:");
    const view = new TensorView(page, screen);
    const long = "%a/very/long/name/of/a/value/as/exporters/write/them/layers.11.attention.self.query";
    await view.open(`${long} + 0 * ${long}`);
    await view.expectText(".statistics", /6 elements/);
    await view.open("%twice");
    await view.expectText(".statistics", /nan 1/);
    await view.choose("Colors", "diverging");
    await page.keyboard.press("ArrowDown");
    const themes = { dark: "Default Dark Modern", light: "Default Light Modern", contrast: "Default High Contrast" };
    for (const [name, theme] of Object.entries(themes)) {
      settings({ "workbench.colorTheme": theme });
      const kind = { dark: "vscode-dark", light: "vscode-light", contrast: "vscode-high-contrast" }[name];
      await screen.until(async () => (await view.frame.locator("body").getAttribute("class")).split(" ").includes(kind), theme);
      await screen.picture(`tensor-${name}`);
    }
    await page.keyboard.press("Control+j");
    await page.keyboard.press("Control+b");
    // At twice the size, a window has room for half as many pixels.
    const { width, height } = page.viewportSize();
    await page.setViewportSize({ width: width / 2, height: height / 2 });
    await view.settled("main");
    await screen.picture("tensor-twice");
    const { scrollWidth, clientWidth } = await view.frame.locator("body").evaluate(({ scrollWidth, clientWidth }) => ({ scrollWidth, clientWidth }));
    assert.ok(scrollWidth <= clientWidth, "nothing overflows to the side");
    await page.setViewportSize({ width, height });
  },
};
