// What is silently wrong, in the words of `tensortap check`.
import type { CheckFinding } from "../api/types";
import { useHere, useLoaded } from "../app/context";
import { SourceLink } from "../parts/parts";
import { many, short } from "../parts/text";

export function FindingsCard() {
  const { client, job, state } = useHere();
  const { data } = useLoaded(() => client.findings(job), [client, job, state.findings]);
  if (!data?.findings.length) return null;
  return (
    <section class="answer findings" aria-label="Findings">
      <h1>
        <b>Silently wrong</b> <span class="muted">{many(data.findings.length, "finding")} of tensortap check</span>
      </h1>
      {data.findings.map((finding) => (
        <Told key={`${finding.kind}:${finding.subject}`} finding={finding} />
      ))}
      {data.left_out > 0 && <p class="muted">and {many(data.left_out, "more finding")} that may be meant: tensortap check --all</p>}
    </section>
  );
}

function Told({ finding }: { finding: CheckFinding }) {
  const evidence = Object.entries(finding.evidence).map(([name, value]) => `${name} ${shown(value)}`);
  return (
    <div class="finding">
      <p>
        <b class={finding.certainty === "sure" ? "red" : "yellow"}>
          {finding.certainty === "sure" ? "✗" : "?"} {finding.kind}
        </b>{" "}
        <bdi class="mono">{finding.subject}</bdi> <span class="muted">since step {finding.step}</span>
        {finding.certainty !== "sure" && <span class="muted"> · {finding.certainty}</span>}
      </p>
      <p>{finding.sentence}</p>
      {finding.file !== null && (
        <p>
          <SourceLink file={finding.file} line={finding.line ?? 1} label={finding.place} />{" "}
          <span class="muted">
            in <bdi>{finding.function}</bdi>
          </span>
        </p>
      )}
      {evidence.length > 0 && <p class="muted">shown by {evidence.join("; ")}</p>}
      {finding.try && <p class="green">{finding.try}</p>}
    </div>
  );
}

function shown(value: unknown): string {
  return typeof value === "number" ? short(value) : String(value);
}
