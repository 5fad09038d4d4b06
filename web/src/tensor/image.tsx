// A value as a picture with its own colours: height × width × 3 or 4, or channels first.
import { useEffect, useRef } from "preact/hooks";
import type { RunPlace } from "../api/client";
import type { Nested } from "../api/types";
import { useHere, useLoaded } from "../app/context";
import { Loading, Problem } from "../parts/parts";
import { asNumber } from "../parts/text";

const MOST_ELEMENTS = 100_000;

/** Which axis holds the channels; null if it is no image. */
function channelAxis(shape: number[]): number | null {
  const last = shape.length - 1;
  if (shape.length < 3) return null;
  if ([3, 4].includes(shape[last]!)) return last;
  return [1, 3, 4].includes(shape[last - 2]!) ? last - 2 : null;
}

export function isImage(shape: number[]): boolean {
  const size = shape.slice(-3).reduce((a, b) => a * b, 1);
  return channelAxis(shape) !== null && size <= MOST_ELEMENTS;
}

export function ImageShown(props: { place: RunPlace; name: string; execution: number; shape: number[] }) {
  const { client } = useHere();
  const canvas = useRef<HTMLCanvasElement>(null);
  const { shape } = props;
  // The first of a batch; slices that were typed already choose one.
  const leading = Array.from({ length: shape.length - 3 }, () => "0").join(", ");
  const name = leading && !props.name.includes("[") ? `${props.name}[${leading}]` : props.name;
  const { data, problem } = useLoaded(() => client.value(props.place, name, props.execution), [client, props.place, name, props.execution]);
  useEffect(() => {
    const element = canvas.current;
    if (!element || !data || !Array.isArray(data.value)) return;
    draw(element, data.value, shape.slice(-3), channelAxis(shape)! === shape.length - 1);
  }, [data]);
  if (problem) return <Problem text={problem} />;
  if (!data) return <Loading what="Reading the image…" />;
  return <canvas class="image" ref={canvas} role="img" aria-label="Image" />;
}

function draw(element: HTMLCanvasElement, value: Nested[], shape: number[], channelsLast: boolean): void {
  const [a, b, c] = shape as [number, number, number];
  const [height, width, channels] = channelsLast ? [a, b, c] : [b, c, a];
  const at = (y: number, x: number, channel: number): number => {
    const [i, j, k] = channelsLast ? [y, x, channel] : [channel, y, x];
    return asNumber(((value[i] as Nested[])[j] as Nested[])[k] as number);
  };
  let low = Infinity;
  let high = -Infinity;
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      for (let channel = 0; channel < channels; channel++) {
        const number = at(y, x, channel);
        if (Number.isFinite(number)) {
          low = Math.min(low, number);
          high = Math.max(high, number);
        }
      }
  const scale = high > low ? 255 / (high - low) : 1;
  element.width = width;
  element.height = height;
  const context = element.getContext("2d")!;
  const image = context.createImageData(width, height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const place = (y * width + x) * 4;
      const shown = [0, 1, 2].map((channel) => at(y, x, channels === 1 ? 0 : channel));
      const bad = shown.some((number) => !Number.isFinite(number));
      shown.forEach((number, channel) => {
        image.data[place + channel] = bad ? [201, 24, 74][channel]! : (number - low) * scale;
      });
      image.data[place + 3] = 255;
    }
  context.putImageData(image, 0, 0);
}
