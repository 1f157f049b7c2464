// Views that show where the program stands.  Each asks one request of its own at a stop: only while it is
// seen, one at a time, and what is asked of a place that the program has left is canceled.

import * as vscode from "vscode";
import { Sessions } from "./sessionEvents";

export interface FollowingView {
  readonly request: string;
  /** Whether somebody sees it. */
  readonly visible: boolean;
  asks(): object;
  show(answer: unknown, session: vscode.DebugSession): void;
  /** Why there is nothing to show. */
  say(words: string): void;
}

const RUNNING = "The program is running. The view updates when the program stops.";
const NO_SESSION = "No graph is being debugged. Open a model or graph text, and press F5.";

/** Keeps one view at the place where the active session stands. */
export class Follower {
  private session: vscode.DebugSession | undefined;
  private stale = true;
  private underWay: { abandon(): void } | undefined;

  constructor(
    private readonly view: FollowingView,
    private readonly sessions: Sessions,
  ) {}

  /** The view is to show this session, or another place of it; where none stands, it says `why`. */
  changed(session: vscode.DebugSession | undefined, why: string): void {
    this.session = session;
    this.again();
    if (!session) {
      this.view.say(why);
    }
  }

  /** What it shows is no longer so, or is asked for otherwise. */
  again(): void {
    this.underWay?.abandon();
    this.stale = true;
    void this.update();
  }

  /** Asks, if there is something new and somebody looks. */
  async update(): Promise<void> {
    const { session, view } = this;
    if (!this.stale || this.underWay || !session || !view.visible) {
      return;
    }
    this.stale = false;
    const { body, abandon } = this.sessions.ask<unknown>(session, view.request, view.asks());
    this.underWay = { abandon };
    const answer = await body.then(
      (found) => () => view.show(found, session),
      (error: Error) => () => view.say(error.message),
    );
    await this.sessions.shown(session);
    this.underWay = undefined;
    if (this.stale) {
      await this.update();
    } else {
      answer();
    }
  }
}

/** Tells the followers when the program stands somewhere else, or something was changed where it stands. */
export class Stops implements vscode.Disposable {
  private readonly standing = new Set<vscode.DebugSession>();
  private readonly listeners: vscode.Disposable[];

  constructor(
    private readonly sessions: Sessions,
    private readonly followers: readonly Follower[],
  ) {
    this.listeners = [
      vscode.debug.onDidChangeActiveDebugSession(() => this.tell()),
      sessions.onTold(({ session, event }) => {
        if (event === "stopped") {
          this.standing.add(session);
          this.tell();
        } else if (event === "terminated" || event === "over") {
          this.standing.delete(session);
          this.tell();
        } else if (event === "invalidated") {
          this.tell();
        }
      }),
    ];
  }

  /** What the sessions hear; and a command of the console may have marked or changed something. */
  tracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const heard = this.sessions.tracker(session);
    const entered = new Set<number>();
    return {
      ...heard,
      onWillReceiveMessage: (message) => {
        heard.onWillReceiveMessage?.(message);
        if (message.command === "evaluate" && message.arguments?.context === "repl") {
          entered.add(message.seq);
        }
      },
      onDidSendMessage: (message) => {
        heard.onDidSendMessage?.(message);
        if (entered.delete(message.request_seq)) {
          this.tell();
        }
      },
    };
  }

  private tell(): void {
    const active = vscode.debug.activeDebugSession;
    const session = active && this.standing.has(active) ? active : undefined;
    const why = active?.type === "nncdbg" ? RUNNING : NO_SESSION;
    this.followers.forEach((each) => each.changed(session, why));
  }

  dispose(): void {
    this.listeners.forEach((each) => void each.dispose());
  }
}
