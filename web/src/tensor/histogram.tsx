// How the finite elements are spread.
import type { Pictured } from "../api/types";
import { count, short } from "../parts/text";

const WIDTH = 560;
const HEIGHT = 180;

export function HistogramChart({ pictured }: { pictured: Pictured }) {
  const found = pictured.histogram;
  if (!found) return <p class="muted">There is no finite element.</p>;
  const most = Math.max(...found.counts, 1);
  const bar = WIDTH / found.counts.length;
  const [low, high] = [found.edges[0]!, found.edges[found.edges.length - 1]!];
  return (
    <div class="histogram">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT + 18}`} role="img" aria-label="Histogram">
        {found.counts.map((number, place) => {
          const height = number ? Math.max(1.5, (HEIGHT * Math.log1p(number)) / Math.log1p(most)) : 0;
          return (
            <rect x={place * bar + 0.5} y={HEIGHT - height} width={bar - 1} height={height}>
              <title>
                {`${short(found.edges[place]!)} to ${short(found.edges[place + 1]!)}: ${count(number)}`}
              </title>
            </rect>
          );
        })}
        {low < 0 && high > 0 && (
          <line x1={(-low / (high - low)) * WIDTH} x2={(-low / (high - low)) * WIDTH} y1="0" y2={HEIGHT} />
        )}
        <text x="0" y={HEIGHT + 14}>
          {short(low)}
        </text>
        <text x={WIDTH} y={HEIGHT + 14} text-anchor="end">
          {short(high)}
        </text>
      </svg>
      <p class="muted small">
        Heights are logarithms of counts{found.is_sampled && "; an even selection of the elements was counted"}.
      </p>
    </div>
  );
}
