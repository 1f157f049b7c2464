// A PyTorch training under debugpy and the live debugger of nncdbg, started together.

import { spawn } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { STARTING, freePort, launches } from "../screen.mjs";

const TRAINING = `import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.out = nn.Linear(8, 2)

    def forward(self, points):
        activated = torch.tanh(self.hidden(points))
        return self.out(activated)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 1000):
    batch = torch.randn(16, 4)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
`;

/** Writes the training, and the launch configuration of the documentation. */
async function compound(workspace) {
  const port = await freePort();
  fs.writeFileSync(path.join(workspace, "train.py"), TRAINING);
  const args = ["debug", "--history", "--listen", `127.0.0.1:${port}`, "${workspaceFolder}/train.py"];
  launches(workspace, {
    request: "attach",
    debugpy: { module: "nncdbg", args, justMyCode: false, cwd: "${workspaceFolder}" },
    connect: { host: "127.0.0.1", port },
  });
}

export const tests = {
  async "Python and the training stop at their breakpoints, show both at one operator, continue and end together"({ page, screen, workspace, open }) {
    await compound(workspace);
    await open("debugpy");
    await screen.openFile("first_steps.nnc");
    await screen.breakIn("train.py", "batch = ");
    await screen.command("Add Function Breakpoint");
    await page.locator('.debug-breakpoints input[type="text"]').fill("aten.tanh");
    await page.keyboard.press("Enter");
    await screen.row("debug-breakpoints", /aten\.tanh/);
    await page.locator('.tab[data-resource-name="train.py"]').click();
    await screen.pressUntil("F5", STARTING, "the start of the sessions");
    await screen.stoppedAt("batch = ");
    await screen.row("debug-call-stack", /the one *Running/i);
    await screen.row("debug-variables", /step = 1/);
    await screen.picture("live-python");

    await screen.continueTo("torch.tanh(");
    await screen.row("debug-call-stack", /Net\.forward/);
    await screen.row("debug-variables", /points = f32\[16,4\]/);
    await screen.picture("live-operator");

    // Python pauses within the operator: its variables and the tensors are those of one moment.
    const python = screen.rows("debug-call-stack", { hasText: "the one: Python" });
    const frame = screen.rows("debug-call-stack", { hasText: /^forward/ });
    await python.click();
    await screen.again(() => page.keyboard.press("F6"), screen.rows("debug-call-stack", { hasText: "runner.py" }), "the frames of Python");
    const tensor = screen.rows("debug-variables", { hasText: /points =\s*tensor/ });
    const select = async () => {
      await screen.until(async () => {
        await page.mouse.wheel(0, 40);
        return (await frame.count()) > 0;
      }, "the frame of forward");
      // The row may still be cut, or be under the tooltip of the row above.
      await page.mouse.wheel(0, 40);
      await frame.click({ timeout: 5000 }).catch(() => undefined);
    };
    await screen.again(select, tensor, "the variables of forward");
    await screen.picture("live-both");

    // Each continues; the next stop is Python's, once, although VS Code sends this breakpoint to both.
    await screen.pressUntil("F5", python.filter({ hasText: /running/i }), "Python runs");
    await screen.rows("debug-call-stack", { hasText: "Net.forward" }).click();
    await screen.continueTo("batch = ");
    // The second batch: the first has made a loss.
    await screen.row("debug-variables", /loss = tensor/);
    await screen.row("debug-call-stack", /the one *Running/i);
    // Away from the row, whose tooltip covers the frames.
    await page.mouse.move(700, 700);
    await screen.picture("live-continued");
    await screen.stop();
  },

  async "a step of a training is recorded whole, and a continue from its past goes to the place of the script"({ page, screen, workspace, open, python }) {
    fs.writeFileSync(path.join(workspace, "train.py"), TRAINING);
    const port = await freePort();
    const options = { cwd: workspace, stdio: ["ignore", "inherit", "inherit"] };
    const training = spawn(python, ["-m", "nncdbg", "debug", "--history", "--listen", `127.0.0.1:${port}`, "train.py"], options);
    try {
      launches(workspace, { request: "attach", connect: { port, waitFor: 60 } });
      await open();
      await screen.openFile("first_steps.nnc");
      await screen.command("Add Function Breakpoint");
      await page.locator('.debug-breakpoints input[type="text"]').fill("aten.tanh");
      await page.keyboard.press("Enter");
      await screen.row("debug-breakpoints", /aten\.tanh/);
      await page.locator('.tab[data-resource-name="first_steps.nnc"]').click();
      await screen.pressUntil("F5", STARTING, "the start of the session");
      await screen.stoppedAt("torch.tanh(");
      await screen.row("debug-call-stack", /Net\.forward/);
      await screen.row("debug-variables", /points = f32\[16,4\]/);
      await screen.command("Record This Training Step");
      await screen.see('.pane-header:has-text("The end of step 1")');
      await screen.stoppedAt("optimizer.step()");
      await screen.picture("live-recorded");
      await screen.pressUntil("Alt+F10", '.pane-header:has-text("Stopped after a step")', "a step back");
      await screen.pressUntil("F5", '.pane-header:has-text("The script is here")', "the place of the script");
      await screen.picture("live-here");
      await page.locator('.debug-toolbar [aria-label^="Disconnect"]').click();
      await screen.expectHidden(".debug-toolbar");
    } finally {
      training.kill();
    }
  },
};
