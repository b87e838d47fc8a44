// What the gateway says of a refused knob, in Chinese. It says it in English, in so many sentences; one that is new stays English.

const SENTENCES = [
  [/^expected a duration like (.+) \(a bare number is seconds\)/, "应为时长，如 $1（只写数字表示秒）"],
  [/^expected a duration above 0/, "应为大于 0 的时长"],
  [/^expected a decimal number without a leading zero/, "应为不带前导零的十进制数"],
  [/^expected a floor \(a part like 0\.05\), or `floor: 0`/, "应写下限（如 0.05），或写 0 表示该优先级可以无限等待"],
  [/^expected a whole number of at least (\d+), or `auto`/, "应为不小于 $1 的整数，或 auto"],
  [/^expected a whole number of at least (\d+)/, "应为不小于 $1 的整数"],
  [/^expected a number of at least (\d+)/, "应为不小于 $1 的数"],
  [/^expected a part above 0 up to 1/, "应为大于 0、不超过 1 的比例"],
  [/^expected a part from 0 to below 1/, "应为不小于 0、小于 1 的比例"],
  [/^expected a part from 0 to 1/, "应为 0 到 1 的比例，如 0.05"],
  [/^expected 0, no band is below the lowest/, "应为 0：最低优先级之下没有别的优先级"],
  [/^expected at least the sum of the floors \((\S+)\)/, "应不小于各下限之和（$1）：按下限的派发也算越过"],
  [/^expected at most (\S+), one less than the seats of (\S+)/, "应不超过 $1，即 $2 的座位数减一"],
  [/^expected at most the weight of (\w+) \((\S+)\)/, "应不超过 $1 的基础分（$2）"],
  [/^expected at most (1\/\d+) with (\d+) floored bands/, "有 $2 个优先级设下限时，每个应不超过 $1"],
  [/^expected parts with 0 <= kv_watermark <= kv_resume < 1/, "应满足 0 ≤ kv_watermark ≤ kv_resume < 1"],
  [/^expected one of ([\w, ]+?)(?:, got .*)?$/, "应为其中之一：$1"],
];

/** Say a problem in Chinese; `null` when there are no words for it. */
export function inChinese({ expected, got, nearest }) {
  const found = SENTENCES.find(([pattern]) => pattern.test(expected));
  if (found === undefined) return null;
  const [pattern, words] = found;
  const places = pattern.exec(expected);
  const said = words.replace(/\$(\d)/g, (_, place) => places[place]);
  const came = got || (/, got ([^:]+)/.exec(expected)?.[1] ?? "");
  const value = came === "nothing" ? "空值" : came.replace(" and ", " 和 ");
  return `${said}${value ? `，收到 ${value}` : ""}${nearest ? `；是否想写 ${nearest}？` : ""}`;
}
