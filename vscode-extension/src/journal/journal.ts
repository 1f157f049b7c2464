// One journal: read again when it changes, while a view shows it.

import * as vscode from "vscode";
import { Missing } from "../environment/python";
import { signatureOf } from "./files";
import type { Log } from "./log";

/** ms between two looks at the files. */
const INTERVAL = 1000;
/** A read takes at most this part of the time, so that the training keeps the processor. */
const SHARE = 0.1;
/** ms without a commit after which a running run is read again: its process may be gone. */
const QUIET = 10_000;

/** Reads a journal, such as `readLog` with a Python. */
export type Reader = (file: string) => Promise<Log>;

export class Journal implements vscode.Disposable {
  log: Log | undefined;
  /** Why the journal cannot be read; `log` stays as it was. */
  error = "";
  private readonly changed = new vscode.EventEmitter<void>();
  /** `log` or `error` is new. */
  readonly onDidChange = this.changed.event;
  private readonly followers = new Set<object>();
  private timer: NodeJS.Timeout | undefined;
  private polling: Promise<void> | undefined;
  private signature = "";
  private lastRead = -Infinity;
  /** nncdbg cannot run: reading waits until `refresh`. */
  private blocked = false;

  constructor(
    readonly file: string,
    private readonly read: Reader,
    private readonly interval = INTERVAL,
  ) {}

  /** Keeps the journal up to date, until the result is disposed. */
  follow(): vscode.Disposable {
    const follower = {};
    this.followers.add(follower);
    void this.poll();
    return { dispose: () => this.followers.delete(follower) };
  }

  /** Reads the journal, even if it has not changed. */
  refresh(): Promise<void> {
    this.signature = "";
    this.blocked = false;
    return this.poll();
  }

  private poll(): Promise<void> {
    clearTimeout(this.timer);
    this.polling ??= this.update().then((pause) => {
      this.polling = undefined;
      if (this.followers.size && pause !== undefined) {
        this.timer = setTimeout(() => void this.poll(), pause);
      }
    });
    return this.polling;
  }

  /** Reads the journal if it has changed.  Returns the ms until the next look; undefined if there is none. */
  private async update(): Promise<number | undefined> {
    if (this.blocked) {
      return undefined;
    }
    let pause = this.interval;
    try {
      const signature = await signatureOf(this.file);
      if (signature !== this.signature || this.isQuiet()) {
        const begun = Date.now();
        this.signature = signature;
        this.log = await this.read(this.file);
        this.lastRead = Date.now();
        pause = Math.max(pause, (this.lastRead - begun) / SHARE);
        this.error = "";
        this.changed.fire();
      }
    } catch (error) {
      this.blocked = error instanceof Missing;
      this.signature = "";
      pause = QUIET;
      const { message } = error as Error;
      if (message !== this.error) {
        this.error = message;
        this.changed.fire();
      }
    }
    return this.blocked ? undefined : pause;
  }

  private isQuiet(): boolean {
    const running = this.log?.runs.some(({ status }) => status === "running") ?? false;
    return running && Date.now() - this.lastRead > QUIET;
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.followers.clear();
    this.changed.dispose();
  }
}
