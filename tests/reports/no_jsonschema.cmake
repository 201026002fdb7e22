message(FATAL_ERROR "no Python with jsonschema 4 was found when the build was configured: install python3-jsonschema, "
  "or name one with -DWARPMETER_SCHEMA_PYTHON=..., or leave this test out with -DWARPMETER_SCHEMA_TEST=OFF")
