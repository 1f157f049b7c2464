// Messages between a page and the extension.

export interface Message {
  kind: string;
}

/** One handler for each kind of message. */
export type Handlers<Received extends Message> = {
  [Kind in Received["kind"]]: (message: Extract<Received, { kind: Kind }>) => void;
};

/** A source as in the protocol, and a line of it. */
export interface SourceLine {
  source: { name?: string; path?: string; sourceReference?: number };
  line: number;
}
