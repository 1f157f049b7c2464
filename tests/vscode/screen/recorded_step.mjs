// A training step of a PyTorch script, recorded by `nncdbg record`: stepped through the lines of the script.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";

/** A language model of two blocks, with a training of two steps. */
const TRAINING = `import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(mask, -torch.inf).softmax(dim=-1)
        return x + self.out(weights @ value)


class LanguageModel(nn.Module):
    def __init__(self, tokens=16, width=8):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, tokens)

    def forward(self, ids):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


torch.manual_seed(0)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(2):
    ids = torch.randint(16, (2, 7))
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
`;

/** Records step 2 of the training in the folder `step2` of the workspace. */
export function record(workspace, python) {
  fs.writeFileSync(path.join(workspace, "train.py"), TRAINING);
  const found = spawnSync(python, ["-m", "nncdbg", "record", "train.py", "--step", "2", "-o", "step2"], { cwd: workspace, encoding: "utf8" });
  assert.equal(found.status, 0, found.stderr);
}

export const tests = {
  async "F5 in the folder of a step: the arrow is in the script, into a module, back, and through the backward pass"({ page, screen, workspace, open, python }) {
    record(workspace, python);
    await open();
    await page.locator(".explorer-folders-view .monaco-list-row", { hasText: "step2" }).click();
    await screen.openFile("program.nnc");
    await screen.start();
    await screen.stoppedAt("ids = torch.randint(");
    assert.match(await screen.expectAnswer(/recorded step/), /recorded step 2 of train\.py/);
    await page.keyboard.press("F10");
    await screen.stoppedAt("logits = model(");
    await screen.row("debug-variables", /ids = i64\[2,7\]/);
    await page.keyboard.press("F11");
    await screen.stoppedAt("hidden = self.embedding(");
    await page.keyboard.press("F10");
    await screen.stoppedAt("hidden = block(");
    await screen.row("debug-variables", /hidden = f32\[2,6,8\]/);
    await page.keyboard.press("F11");
    await screen.stoppedAt("query, key, value =");
    await screen.row("debug-call-stack", /Block\.forward/);
    await page.keyboard.press("F10");
    await screen.stoppedAt("scores = query");
    await screen.row("debug-variables", /query = f32\[2,6,8\]/);
    await screen.picture("step-module");
    await page.keyboard.press("Alt+F10");
    await screen.stoppedAt("query, key, value =");
    await screen.picture("step-back");

    await page.keyboard.press("Shift+F11");
    await screen.stoppedAt("hidden = block(");
    await page.keyboard.press("Shift+F11");
    await screen.stoppedAt("loss = nn.functional");
    await page.keyboard.press("F10");
    await screen.stoppedAt("loss.backward()");
    await page.keyboard.press("F11");
    await screen.stoppedAt("loss = nn.functional");
    await screen.row("debug-call-stack", /backward of <module>/);
    await screen.picture("step-backward");
    // The names of the caller are those of the script.
    await screen.rows("debug-call-stack", { hasText: "<module>" }).last().click();
    await screen.row("debug-variables", /logits = f32/);
    await screen.picture("step-source");
    await screen.stop();
  },
};
