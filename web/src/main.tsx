import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import { Client } from "./api/client";
import { Embedded } from "./api/embedded";
import { App } from "./app/app";
import { applyTheme } from "./app/theme";
import "./app/base.css";
import "./answer/answer.css";
import "./grid/grid.css";
import "./tensor/tensor.css";
import "./graph/graph.css";
import "./source/source.css";
import "./timelines/timelines.css";
import "./control/control.css";

applyTheme();
const page = document.getElementById("page")!;
void Embedded.find().then((embedded) => {
  page.replaceChildren();
  render(<App client={new Client(embedded)} />, page);
});
