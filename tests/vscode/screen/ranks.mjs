// The ranks of a distributed job: one session, a breakpoint on one rank, and the missing rank of a hang.

import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { STARTING, freePort, launches } from "../screen.mjs";

/** At step 4, rank 1 does not come to the `all_reduce`. */
const TRAINING = `import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.ones(4, 4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1, 1000):
    hidden = torch.tanh(weight + rank)
    hidden.mean().backward()
    while rank == 1 and step == 4:
        time.sleep(0.05)
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
`;

/** Starts a job of two ranks, which wait for a client, and returns the function that ends it. */
async function startJob(python, workspace) {
  const port = await freePort();
  fs.writeFileSync(path.join(workspace, "train.py"), TRAINING);
  const torchrun = ["-I", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", `${port}`];
  const debug = ["-m", "nncdbg", "debug", "--ranks", "--wait", "train.py"];
  const options = { cwd: workspace, env: { ...process.env, OMP_NUM_THREADS: "1" }, stdio: ["ignore", "ignore", "pipe"] };
  const job = spawn(python, [...torchrun, ...debug], options);
  let output = "";
  await new Promise((resolve, reject) => {
    job.stderr.on("data", (text) => (output += text).includes(`nncdbg attach --ranks ${port}`) && resolve());
    job.once("exit", () => reject(new Error(`the job has ended:\n${output}`)));
  });
  // The ranks first: each has a process group of its own, and torchrun does not end one that hangs.
  return { port, end: () => spawnSync("pkill", ["-KILL", "-P", `${job.pid}`]) && job.kill("SIGKILL") };
}

export const tests = {
  async "ranks are threads, a breakpoint stops one of them, and the console names the missing rank of a hang"({ page, screen, workspace, open, python }) {
    const { port, end } = await startJob(python, workspace);
    try {
      launches(workspace, { request: "attach", ranks: port });
      await open();
      await screen.openFile("first_steps.nnc");
      await screen.command("Add Function Breakpoint");
      await page.locator('.debug-breakpoints input[type="text"]').fill("aten.tanh if $rank == 1 and $step == 2");
      await page.keyboard.press("Enter");
      await screen.row("debug-breakpoints", /aten\.tanh/);
      await screen.pressUntil("F5", STARTING, "the start of the session");
      await screen.row("debug-call-stack", /rank 1: main *Stopped at a function breakpoint/i);
      await screen.row("debug-call-stack", /rank 0: main *Running/i);
      await screen.picture("ranks");
      await screen.enter("info collectives");
      await screen.picture("ranks-stopped");
      await page.keyboard.press("F5");
      await screen.until(async () => {
        await screen.enter("info collectives");
        return (await screen.texts(page.locator(".repl .monaco-list-row"))).some((each) => each.includes("rank 1 has not reached all_reduce #4"));
      }, "the missing rank of the hang");
      await screen.picture("ranks-hang");
      await screen.stop();
    } finally {
      end();
    }
  },
};
