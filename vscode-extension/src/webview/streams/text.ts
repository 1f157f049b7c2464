// The words of a statement in the timeline.

import type { Race, StreamTimeline, TimedStatement } from "../../streams/messages";

const STATES = { "": "", current: "the current statement", next: "the next statement of its stream" };

/** What a screen reader and the tooltip say. */
export function described(timeline: StreamTimeline, statement: TimedStatement): string {
  const { name, line, lane, events, state, duration } = statement;
  const index = timeline.statements.indexOf(statement);
  const races = timeline.races.filter(([, , first, second]) => first === index || second === index).map((race) => raceText(timeline, race));
  const time = timeline.measured ? (duration ? `median ${microseconds(duration)}` : "not measured yet") : "";
  return [name, `line ${line}`, timeline.lanes[lane].name, ...events, ...races, time, STATES[state]].filter((each) => each).join(", ");
}

/** A race in words. */
export function raceText({ statements }: StreamTimeline, [access, value, first, second]: Race): string {
  return `race (${access}) over ${value} of lines ${statements[first].line} and ${statements[second].line}`;
}

/** A duration in microseconds, with three digits. */
export function microseconds(duration: number): string {
  const [value, unit] = duration >= 1e6 ? [duration / 1e6, "s"] : duration >= 1e3 ? [duration / 1e3, "ms"] : [duration, "µs"];
  return `${Number(value.toPrecision(3))} ${unit}`;
}

/** What the time axis is, and what is not shown. */
export function note({ measured, leftOut, lanes, races }: StreamTimeline): string {
  const time = measured
    ? "Widths are the median times of kernels; statements that have not run yet are narrow."
    : "Each statement takes one unit of time; to measure them, enter \"set times on\" in the debug console.";
  const order = lanes.length > 1 ? "Statements begin as early as the schedule allows. Arrows are waits for events." : "The program has no schedule: one statement runs after the other.";
  const unordered = races.length ? `${races.length === 1 ? "1 race" : `${races.length} races`}: red lines join statements that are not ordered.` : "";
  return [unordered, order, time, leftOut ? `${leftOut} statements are not shown.` : ""].filter((each) => each).join(" ");
}
