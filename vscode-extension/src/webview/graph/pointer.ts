// Pointer input of a canvas: pointing, clicks and drags.

type Offset = Pick<PointerEvent, "offsetX" | "offsetY">;

export interface PointerListener {
  pointed(offset: Offset): void;
  clicked(offset: Offset): void;
  /** The pointer has moved by so many CSS pixels. */
  dragged(x: number, y: number): void;
}

/** CSS pixels from which a move is a drag, and not a click. */
const DRAG = 4;

export function handlePointer(canvas: HTMLCanvasElement, listener: PointerListener): void {
  let drag: { x: number; y: number; moved: boolean } | undefined;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button === 0) {
      drag = { x: event.clientX, y: event.clientY, moved: false };
      canvas.setPointerCapture(event.pointerId);
    }
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) {
      listener.pointed(event);
      return;
    }
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    if (drag.moved || Math.hypot(x, y) > DRAG) {
      drag = { x: event.clientX, y: event.clientY, moved: true };
      listener.dragged(x, y);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const isClick = drag && !drag.moved;
    drag = undefined;
    if (isClick) {
      listener.clicked(event);
    }
  });
  canvas.addEventListener("pointercancel", () => (drag = undefined));
}
