// Views that follow the active session.  A view sends one request at each stop: only while it is visible, and one at
// a time.  A request for a place that the program has left is canceled.

import * as vscode from "vscode";
import type { SessionEvents } from "./sessionEvents";

export interface FollowingView {
  readonly request: string;
  readonly visible: boolean;
  arguments(): object;
  show(answer: unknown, session: vscode.DebugSession): void;
  /** Shows why there is no answer. */
  showStatus(text: string): void;
}

const RUNNING = "The program is running. The view updates when the program stops.";
const NO_SESSION = "No graph is being debugged. Open a model or graph text, and press F5.";

/** Keeps one view at the current statement of the active session. */
export class Follower {
  private session: vscode.DebugSession | undefined;
  private stale = true;
  private pending: { cancel(): void } | undefined;

  constructor(
    private readonly view: FollowingView,
    private readonly sessions: SessionEvents,
  ) {}

  /** Follows a stopped session, which may have moved; without one, the view shows `status`. */
  follow(session: vscode.DebugSession | undefined, status: string): void {
    this.session = session;
    this.restart();
    if (!session) {
      this.view.showStatus(status);
    }
  }

  /** Sends the request again: the values or its arguments have changed. */
  restart(): void {
    this.pending?.cancel();
    this.stale = true;
    void this.update();
  }

  /** Sends the request if the view is visible and its answer is stale. */
  async update(): Promise<void> {
    const { session, view } = this;
    if (!this.stale || this.pending || !session || !view.visible) {
      return;
    }
    this.stale = false;
    const { body, cancel } = this.sessions.request<unknown>(session, view.request, view.arguments());
    this.pending = { cancel };
    const show = await body.then((answer) => () => view.show(answer, session), (error: Error) => () => view.showStatus(error.message));
    await this.sessions.valuesShown(session);
    this.pending = undefined;
    if (this.stale) {
      await this.update();
    } else {
      show();
    }
  }
}

/** Updates followers when the program stops elsewhere, or when a value or mark has changed. */
export class Followers implements vscode.Disposable {
  private readonly stopped = new Set<vscode.DebugSession>();
  private readonly listeners: vscode.Disposable[];

  constructor(
    private readonly sessions: SessionEvents,
    private readonly followers: readonly Follower[],
  ) {
    this.listeners = [
      vscode.debug.onDidChangeActiveDebugSession(() => this.update()),
      sessions.onEvent(({ session, event }) => {
        if (event === "stopped") {
          this.stopped.add(session);
        } else if (event === "terminated" || event === "ended") {
          this.stopped.delete(session);
        } else if (event !== "invalidated") {
          return;
        }
        this.update();
      }),
    ];
  }

  /** Passes on the messages of a session; a command in the debug console may change values and marks. */
  tracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const events = this.sessions.tracker(session);
    const commands = new Set<number>();
    return {
      ...events,
      onWillReceiveMessage: (message) => {
        events.onWillReceiveMessage?.(message);
        if (message.command === "evaluate" && message.arguments?.context === "repl") {
          commands.add(message.seq);
        }
      },
      onDidSendMessage: (message) => {
        events.onDidSendMessage?.(message);
        if (commands.delete(message.request_seq)) {
          this.update();
        }
      },
    };
  }

  private update(): void {
    const active = vscode.debug.activeDebugSession;
    const session = active && this.stopped.has(active) ? active : undefined;
    const status = active?.type === "nncdbg" ? RUNNING : NO_SESSION;
    this.followers.forEach((each) => each.follow(session, status));
  }

  dispose(): void {
    this.listeners.forEach((each) => void each.dispose());
  }
}
