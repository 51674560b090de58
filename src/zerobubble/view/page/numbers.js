// How are numbers written? As by the command line: general as Python's "{:.6g}", percent as
// "{:.2%}". Both round exact ties to the even digit, where JavaScript rounds them up.

function fixed(value, digits) {
  return untied(value.toFixed(digits), value.toFixed(digits + 60), 60);
}

// Take back the rounding up of an exact tie if the digit it came to is odd.
function untied(rounded, long, extra) {
  const isTie = /^50*$/.test(long.slice(-extra)) && Number(rounded.at(-1)) % 2 === 1;
  return isTie ? long.slice(0, -extra).replace(/\.$/, "") : rounded;
}

function general(value) {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const [short, long] = [value.toExponential(5), value.toExponential(65)];
  const exponent = Number(short.split("e")[1]);
  const isSame = exponent === Number(long.split("e")[1]);
  const [mantissa] = short.split("e");
  const digits = isSame ? untied(mantissa, long.split("e")[0], 60) : mantissa;
  if (exponent < -4 || exponent >= 6) {
    const sign = exponent < 0 ? "-" : "+";
    return `${withoutZeros(digits)}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  return withoutZeros(Number(`${digits}e${exponent}`).toFixed(Math.max(0, 5 - exponent)));
}

function withoutZeros(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function percent(share, digits = 2) {
  return `${fixed(share * 100, digits)}%`;
}
