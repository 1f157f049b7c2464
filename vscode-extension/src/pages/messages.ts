// What the views that are pages hear and say.

/** A source as the protocol has it, and a line there. */
export interface Target {
  source: { name?: string; path?: string; sourceReference?: number };
  line: number;
}

/** To the page.  `asked`: what it is to show from now on was chosen elsewhere. */
export type ToPage = { kind: "show"; answer: unknown } | { kind: "say"; words: string } | { kind: "asked"; asks: object };

/** From the page. */
export type FromPage =
  | { kind: "ready" }
  | { kind: "open"; target: Target }
  | { kind: "tensor"; expression: string }
  | { kind: "ask"; asks: object };
