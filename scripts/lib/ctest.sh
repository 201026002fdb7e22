# shellcheck shell=bash
# How scripts/test runs the tests of a build: sourced, never run.

# say_why BUILD: of each test in ctest's last log that failed, the lines that tell why, after all else: a log that is
# looked at by its end has them.
say_why() {
  say ""
  awk '
    /^[0-9]+\/[0-9]+ Test(ing)?: / { test = $3; shown = 0; left = 0 }
    /(: Failure$|^Expected|Traceback|^(FAIL|ERROR): |Error: |terminate called|runtime error|Sanitizer|\[  FAILED  \])/ { left = 8 }
    /^Test (Failed|Timeout)|^Test timeout/ { left = 1 }
    left > 0 && shown < 60 { if (shown++ == 0) print "--- " test; print "  " substr($0, 1, 400) }
    left > 0 { --left }
  ' "$1/Testing/Temporary/LastTest.log" >&2
}

# run_tests BUILD AGAIN ARGUMENTS...: ctest's verdict. With AGAIN=yes a test that fails beside the others runs once more
# alone, and only that counts: a machine that others load, too, must not decide. It is named either way.
run_tests() {
  local build=$1 again=$2 status=0 failed=$1/Testing/Temporary/LastTestsFailed.log unstable
  shift 2
  ctest --test-dir "$build" --output-on-failure "$@" || status=$?
  [ $status -eq 8 ] || return $status
  say_why "$build"
  if [ "$again" = yes ]; then
    unstable=$(sed 's/^[0-9]*:/  /' "$failed")
    say $'\n'"Failed beside others, now once more, one after the other:"$'\n'"$unstable"
    status=0
    ctest --test-dir "$build" --output-on-failure --rerun-failed -j 1 || status=$?
    [ $status -ne 8 ] || say_why "$build"
    say $'\n'"Failed beside others (unstable, where not above too):"$'\n'"$unstable"
  fi
  return $status
}
