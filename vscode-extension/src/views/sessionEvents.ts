// What views that follow a session hear of it, and how they ask it.

import * as vscode from "vscode";
import type { Answer, Wires } from "../session/connections";

export interface Told {
  session: vscode.DebugSession;
  /** An event of the protocol, such as `stopped`; `begun` and `over` stand for the session itself, `stack` for
   * an answer with the innermost frame. */
  event: string;
  body: Body;
}

interface Body {
  threadId?: number;
}

interface Message {
  type: string;
  seq: number;
  request_seq?: number;
  command?: string;
  event?: string;
  arguments?: { startFrame?: number };
  body?: { threadId?: number; stackFrames?: { name: string; line: number }[] };
}

/** ms that views wait for VS Code to have the values that stand in the text: those are shown first. */
const PATIENCE = 150;

const MOVED = new Set(["continued", "terminated", "exited"]);

export class Sessions implements vscode.Disposable {
  private readonly told = new vscode.EventEmitter<Told>();
  private readonly places = new Map<string, string>();
  /** Those that have stopped, and whose place VS Code does not show yet. */
  private readonly unshown = new Map<vscode.DebugSession, { shown: Promise<void>; done: () => void }>();
  private readonly listener: vscode.Disposable;
  readonly onTold = this.told.event;

  /** `given` tells when VS Code has the values of the lines in view. */
  constructor(
    private readonly wires: Wires,
    given: vscode.Event<vscode.DebugSession>,
  ) {
    this.listener = given((session) => this.unshown.get(session)?.done());
  }

  /** When a view may show what belongs to the stop of a session: VS Code draws in the same thread, and comes first. */
  shown(session: vscode.DebugSession): Promise<void> {
    return this.unshown.get(session)?.shown ?? Promise.resolve();
  }

  private stopped(session: vscode.DebugSession): void {
    this.unshown.get(session)?.done();
    let settle = () => {};
    const shown = new Promise<void>((resolve) => (settle = resolve));
    const timer = setTimeout(() => done(), PATIENCE);
    const done = () => {
      clearTimeout(timer);
      if (this.unshown.get(session)?.shown === shown) {
        this.unshown.delete(session);
      }
      settle();
    };
    this.unshown.set(session, { shown, done });
  }

  tracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const tell = (event: string, body: Body = {}) => this.told.fire({ session, event, body });
    /** Requests for the innermost frames. */
    const stacks = new Set<number | undefined>();
    return {
      onWillStartSession: () => tell("begun"),
      onWillStopSession: () => tell("over"),
      onExit: () => tell("over"),
      onWillReceiveMessage: (message: Message) => {
        if (message.command === "stackTrace" && !message.arguments?.startFrame) {
          stacks.add(message.seq);
        }
      },
      onDidSendMessage: (message: Message) => {
        if (message.type === "event") {
          if (MOVED.has(message.event as string)) {
            this.unshown.get(session)?.done();
          } else if (message.event === "stopped") {
            this.stopped(session);
          }
          tell(message.event as string, message.body);
        } else if (stacks.delete(message.request_seq) && message.body?.stackFrames?.length) {
          const [top] = message.body.stackFrames;
          this.places.set(session.id, `${top?.name}, line ${top?.line}`);
          tell("stack");
        }
      },
    };
  }

  /** Where the program stood when VS Code last asked, as `@main, line 12`. */
  placeOf(session: vscode.DebugSession): string {
    return this.places.get(session.id) ?? "";
  }

  /** Sends a request; `abandon` has the server give it up. */
  ask<Body>(session: vscode.DebugSession, command: string, argument: object): Answer<Body> {
    return this.wires.ask(session, command, argument);
  }

  dispose(): void {
    this.unshown.forEach(({ done }) => done());
    this.listener.dispose();
    this.told.dispose();
  }
}
