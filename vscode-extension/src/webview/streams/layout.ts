// Where the statements and waits of a timeline are drawn, in pixels.

import type { Race, StreamTimeline, TimedStatement, Wait } from "../../streams/messages";

/** The height of a lane, and of a statement in it. */
export const LANE = 46;
export const BOX = 28;
/** The room beside the statements. */
export const MARGIN = 14;
/** A statement that has not been measured takes no time, and stays visible. */
const LEAST_WIDTH = 4;
/** The room between two measured statements that follow each other; others have room for arrows. */
const GAP = 2;
const ARROW_GAP = 26;
/** The part of a unit of time that the room for arrows takes at most. */
const MOST_GAP = 0.25;
/** The width of a unit of time: room for a name such as `%scaled MatMul`. */
const UNIT = 150;

export interface StatementBox {
  of: TimedStatement;
  /** Its position in the timeline. */
  index: number;
  x: number;
  y: number;
  width: number;
}

export interface Arrow {
  event: string;
  of: Wait;
  path: string;
}

export interface TimelineLayout {
  width: number;
  height: number;
  boxes: StatementBox[];
  arrows: Arrow[];
  races: { of: Race; path: string }[];
}

const begin = ({ statements }: StreamTimeline) => Math.min(...statements.map(({ start }) => start));
const end = ({ statements }: StreamTimeline) => Math.max(...statements.map(({ start, duration }) => start + duration));

/** The pixels of a unit of time at first: measured times fill the window, others have room for their names. */
export function firstScale(timeline: StreamTimeline, room: number): number {
  return timeline.measured ? fittingScale(timeline, room) : UNIT;
}

/** The pixels of a unit of time with which the timeline fills the window. */
export function fittingScale(timeline: StreamTimeline, room: number): number {
  return Math.max(1, room - 2 * MARGIN) / (end(timeline) - begin(timeline) || 1);
}

export function laidOut(timeline: StreamTimeline, scale: number): TimelineLayout {
  const first = begin(timeline);
  const gap = timeline.measured ? GAP : Math.min(ARROW_GAP, MOST_GAP * scale);
  const boxes = timeline.statements.map((of, index) => ({
    of,
    index,
    x: MARGIN + (of.start - first) * scale,
    y: of.lane * LANE + (LANE - BOX) / 2,
    width: Math.max(LEAST_WIDTH, of.duration * scale - gap),
  }));
  return {
    width: 2 * MARGIN + (end(timeline) - first) * scale,
    height: timeline.lanes.length * LANE,
    boxes,
    arrows: timeline.waits.map((of) => ({ event: of[0], of, path: arrow(boxes[of[1]], boxes[of[2]]) })),
    races: timeline.races.map((of) => ({ of, path: straight(boxes[of[2]], boxes[of[3]]) })),
  };
}

/** A curve from the end of the statement that records an event to the start of the one that waits for it. */
function arrow(from: StatementBox, to: StatementBox): string {
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + BOX / 2, to.x, to.y + BOX / 2];
  const bend = Math.max(14, Math.abs(x2 - x1) / 3);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

/** A line between the middles of two statements that are not ordered. */
function straight(from: StatementBox, to: StatementBox): string {
  const [above, below] = from.y <= to.y ? [from, to] : [to, from];
  return `M${above.x + above.width / 2} ${above.y + BOX}L${below.x + below.width / 2} ${below.y + (below.y > above.y ? 0 : BOX)}`;
}

/** The statement that a key moves to; undefined for another key, and at an end. */
export function neighbor({ statements }: StreamTimeline, index: number, key: string): number | undefined {
  const here = statements[index];
  const indices = [...statements.keys()];
  const inLane = (lane: number) => indices.filter((each) => statements[each].lane === lane);
  const own = inLane(here.lane);
  const at = own.indexOf(index);
  const along = { ArrowRight: own[at + 1], ArrowLeft: own[at - 1], Home: own[0], End: own[own.length - 1] }[key];
  if (along !== undefined) {
    return along;
  }
  const step = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (step === undefined) {
    return undefined;
  }
  const lanes = [...new Set(statements.map(({ lane }) => lane))].sort((a, b) => a - b);
  const next = lanes[lanes.indexOf(here.lane) + step];
  const distance = (each: number) => Math.abs(statements[each].start - here.start);
  return inLane(next).reduce<number | undefined>((best, each) => (best === undefined || distance(each) < distance(best) ? each : best), undefined);
}
