// The grammar on the examples and on other statements: the scopes of single tokens.
// The tests use vscode-textmate with oniguruma, like VS Code.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";

const require = createRequire(import.meta.url);
const textmate = require("vscode-textmate");
const oniguruma = require("vscode-oniguruma");

const HERE = new URL("../../", import.meta.url);
const EXAMPLES = new URL("../examples/", HERE);

const wasm = readFileSync(require.resolve("vscode-oniguruma/release/onig.wasm"));
await oniguruma.loadWASM(wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.byteLength));
const registry = new textmate.Registry({
  onigLib: Promise.resolve({
    createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
    createOnigString: (text) => new oniguruma.OnigString(text),
  }),
  loadGrammar: async () => {
    const file = new URL("syntaxes/nnc.tmLanguage.json", HERE);
    return textmate.parseRawGrammar(readFileSync(file, "utf8"), "nnc.json");
  },
});
const grammar = await registry.loadGrammar("source.nnc");

/** [text, innermost scope without `.nnc`] of each token that is not blank, line by line. */
function tokens(text) {
  let stack = textmate.INITIAL;
  return text.split("\n").map((line) => {
    const found = grammar.tokenizeLine(line, stack);
    stack = found.ruleStack;
    return found.tokens
      .map((each) => [line.slice(each.startIndex, each.endIndex), each.scopes.at(-1).replace(/\.nnc$/, "")])
      .filter(([part]) => part.trim());
  });
}

function scopeOf(line, part) {
  const found = tokens(line)[0].find(([text]) => text === part);
  assert.ok(found, `${JSON.stringify(part)} is no token of ${line}: ${JSON.stringify(tokens(line)[0])}`);
  return found[1];
}

const CASES = [
  ["#nncdbg 1", "#nncdbg", "keyword.control.directive"],
  ["track acc = mean(argmax(%z, 1) == %t)  # all", "track", "keyword.control.directive"],
  ["track acc = mean(argmax(%z, 1) == %t)  # all", "acc", "entity.name.tag"],
  ["track acc = mean(argmax(%z, 1) == %t)  # all", "argmax", "support.function"],
  ["track acc = mean(argmax(%z, 1) == %t)  # all", "%z", "variable.other"],
  ["track acc = mean(argmax(%z, 1) == %t)  # all", "==", "keyword.operator"],
  ["track acc = mean(argmax(%z, 1) == %t)  # all", "# all", "comment.line.number-sign"],
  ["opset com.microsoft 1", "com.microsoft", "entity.name.namespace"],
  ["## why", "## why", "comment.line.documentation"],
  ["  %y = Relu(%x) # told", "# told", "comment.line.number-sign"],
  ["graph @main(%x: f32[N,3,?]) -> (%y: f32[...]) {", "graph", "storage.type.function"],
  ["graph @main(%x: f32[N,3,?]) -> (%y: f32[...]) {", "@main", "entity.name.function"],
  ["graph @main(%x: f32[N,3,?]) -> (%y: f32[...]) {", "f32", "storage.type"],
  ["graph @main(%x: f32[N,3,?]) -> (%y: f32[...]) {", "N", "variable.other.constant.dimension"],
  ["graph @main(%x: f32[N,3,?]) -> (%y: f32[...]) {", "?", "constant.language.unknown"],
  ["graph @main(%x: f32[N,3,?]) -> (%y: f32[...]) {", "->", "keyword.operator.arrow"],
  ['  %"conv:0 # \\" x": f32[] = @layer1(%h)', '%"conv:0 # \\" x"', "variable.other"],
  ["  %/conv1/Conv_output_0: f32[4] = Relu(%h)", "%/conv1/Conv_output_0", "variable.other"],
  ['prefix enc.attn "/encoder/"', "prefix", "keyword.control.directive"],
  ['prefix enc.attn "/encoder/"', "enc.attn", "entity.name.namespace"],
  ["  %enc.attn::Add: f32[4] = Relu(%h)", "enc.attn", "entity.name.namespace"],
  ["  %enc.attn::Add: f32[4] = Relu(%h)", "::", "punctuation.separator.namespace"],
  ["  %enc.attn::Add: f32[4] = Relu(%h)", "Add", "variable.other"],
  ['  %y = Relu(%enc::"q:0") loc(node enc::n)', '"q:0"', "variable.other"],
  ['  %y = Relu(%enc::"q:0") loc(node enc::n)', "node enc::n", "comment.block.location"],
  ["  %y: f32[4] = aten.relu(%x)", "relu", "support.function.op"],
  ["  %y: f32[4] = aten.relu(%x)", "aten.", "entity.name.namespace"],
  ['  %y: f32[4] = "data"(%x)', '"data"', "support.function.op"],
  ['  %w: f32[4] = data("conv1.weight", store=1)', "data", "keyword.other.data"],
  ['  %w: f32[4] = data("conv1.weight", store=1)', "conv1.weight", "string.quoted.double"],
  ["  %y: f32[4] = Conv(%x, %w, _, pads=[3,3,3,3])", "pads", "variable.parameter"],
  ["  %y: f32[4] = Conv(%x, %w, _, pads=[3,3,3,3])", "_", "constant.language.absent"],
  ["  %y: f32[4] = Conv(%x, %w, _, pads=[3,3,3,3])", "3", "constant.numeric"],
  ["  while @refine (%i: i64[] = 0) count %n: i64[] times 30 {", "while", "keyword.control"],
  ["  while @refine (%i: i64[] = 0) count %n: i64[] times 30 {", "times", "keyword.control"],
  ["    break unless %go", "unless", "keyword.control"],
  ["  } -> (%y: f32[4] = %s, %ys: f32[?,4] = collect[0])", "collect", "keyword.control"],
  ["  %c: f32[2] = [-inf, nan:0x7fc00001]", "nan:0x7fc00001", "constant.numeric.special"],
  ["  %c: bool[2] = [true, false]", "true", "constant.language.boolean"],
  ["  %c: f32[] = 1e-06", "1e-06", "constant.numeric"],
  ["  %y: f32[4] = Op(%x, count=3, value=f32[2] [1.0, 2.0])", "count", "variable.parameter"],
  ['  %y: f32[4] = Relu(%x) loc("net.py":12, node "/conv1/Conv")', "loc(", "comment.block.location"],
  ['  %y: f32[4] = Relu(%x) loc("net.py":12, node "/conv1/Conv")', ":12, node ", "comment.block.location"],
  ['  %y: f32[4] = Relu(%x) loc("net.py":12, node "/conv1/Conv")', '"/conv1/Conv"', "comment.block.location"],
  ['  %y: f32[4] = Relu(%x) loc(node "a) b") | s2', "s2", "constant.numeric"],
  ["  %.mm, ... = @layers.0(%x, ...) : f32[4], _", "%.mm", "variable.other"],
  ["  %.mm, ... = @layers.0(%x, ...) : f32[4], _", "...", "keyword.operator.passed"],
  ["  %.mm, ... = @layers.0(%x, ...) : f32[4], _", "f32", "storage.type"],
  ["  %.mm, ... = @layers.0(%x, ...) : f32[4], _", "_", "constant.language.absent"],
  ["states layers.0 {", "states", "storage.type"],
  ["states layers.0 {", "layers.0", "entity.name.namespace"],
  ["states layers.0 {", "{", "punctuation.section.block"],
  ["state %w: f32[4] = data", "data", "keyword.other.data"],
  ["      : f32[4] loc(node a)", "f32", "storage.type"],
  ["state %w: f32[4] = zeros for %v # why", "state", "storage.type"],
  ["state %w: f32[4] = zeros for %v # why", "zeros", "keyword.other.state"],
  ["state %w: f32[4] = zeros for %v # why", "# why", "comment.line.number-sign"],
  ["  update %w = %w.1, %m = %m.1", "update", "keyword.control"],
  ["  %l: f32[], saved %s = @loss(%x)", "saved", "keyword.control"],
  ["backward @loss.backward of @loss by (%w)", "of", "keyword.control.directive"],
  ['run @train for %x in data("x") batch 32 drop_last', "drop_last", "keyword.control.directive"],
  ['run @train for %x in data("x") batch 32 drop_last', "data", "keyword.other.data"],
  ["evaluate @accuracy for %x batch 100", "evaluate", "keyword.control.directive"],
  ["evaluate @accuracy for %x batch 100", "batch", "keyword.control.directive"],
  ["  %y: f32[4] = Op(%x, steps=3, batch=2)", "batch", "variable.parameter"],
  ['  %t: str[1] = ["a\\nb"]', "\\n", "constant.character.escape"],
  ['  %t: str[1] = ["a\\qb"]', "\\q", "invalid.illegal.escape"],
];

for (const [line, part, scope] of CASES) {
  test(`${part} in ${line.trim()}`, () => assert.equal(scopeOf(line, part), scope));
}

test("a block of states ends at its brace or at the next graph", () => {
  for (const end of ["}", ""]) {
    const lines = tokens(`states a {\n  %.m: f32[4] = zeros for %.w\n  %.w: f32[4] = data\n${end}\ngraph @g() -> () {`);
    assert.deepEqual(lines[1].find(([text]) => text === "zeros"), ["zeros", "keyword.other.state"]);
    assert.deepEqual(lines[2].find(([text]) => text === "data"), ["data", "keyword.other.data"]);
    assert.deepEqual(lines[4][0], ["graph", "storage.type.function"]);
  }
});

test("an unfinished string ends with its line", () => {
  const [, second] = tokens('  %t: str[1] = "open\n  %y = Relu(%x)');
  assert.deepEqual(second[0], ["%y", "variable.other"]);
});

for (const name of readdirSync(EXAMPLES).filter((each) => each.endsWith(".nnc"))) {
  test(`${name}: every word has a scope`, () => {
    const bare = tokens(readFileSync(new URL(name, EXAMPLES), "utf8"))
      .flat()
      .filter(([, scope]) => scope === "source");
    assert.deepEqual(bare, []);
  });
}
