# cmake -DSOURCE=<project root> -DOUT=<header> -P provenance_git.cmake
# Writes the commit and whether tracked files differ from it. Run at every build; touches the header only when that
# changes. Outside a checkout of this very project (a tarball, or one unpacked inside another checkout): no commit.
set(sha "")
set(dirty false)
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-toplevel HEAD
                  OUTPUT_VARIABLE out ERROR_QUIET RESULT_VARIABLE rc OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(rc EQUAL 0)
    string(REPLACE "\n" ";" lines "${out}")
    list(GET lines 0 top)
    list(GET lines 1 head)
    get_filename_component(top "${top}" REALPATH)
    get_filename_component(root "${SOURCE}" REALPATH)
    if(top STREQUAL root AND head MATCHES "^[0-9a-f]+$")
      set(sha "${head}")
      # --no-optional-locks: looking must not get in the way of a git command that runs at the same time.
      execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} status --porcelain --untracked-files=no
                      OUTPUT_VARIABLE changes ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(NOT changes STREQUAL "")
        set(dirty true)
      endif()
    endif()
  endif()
endif()
set(text "#pragma once\n#define WM_GIT_SHA \"${sha}\"\n#define WM_GIT_DIRTY ${dirty}\n")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
