# Writes the built-in task files as an array in C, in the order of the paper: src/eval/tasks/task.h.
set(COUPLET_TASKS arc_challenge commonsense_qa copa boolq hellaswag openbookqa sciq social_iqa
                  winogrande mmlu ceval mmlu_pro agieval bbh math gsm8k gsm8k_cot triviaqa)

# Writes `file` if its content has changed.
function(write_task_texts file)
    file(GLOB there RELATIVE ${CMAKE_SOURCE_DIR}/data/eval/tasks CONFIGURE_DEPENDS
         ${CMAKE_SOURCE_DIR}/data/eval/tasks/*.yaml)
    set(arrays "")
    set(list "")
    foreach(task IN LISTS COUPLET_TASKS)
        set(path ${CMAKE_SOURCE_DIR}/data/eval/tasks/${task}.yaml)
        set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
        list(REMOVE_ITEM there ${task}.yaml)
        file(READ ${path} bytes HEX)
        string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
        string(APPEND arrays "static const unsigned char ${task}[] = {${bytes}};\n")
        string(APPEND list "    {\"${task}\", (const char *)${task}, sizeof ${task}},\n")
    endforeach()
    if(there)
        message(FATAL_ERROR "cmake/task_texts.cmake does not name ${there}")
    endif()
    file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "/* written by cmake/task_texts.cmake */
#include \"eval/tasks/task.h\"

${arrays}
const cpl_task_text cpl_task_texts[] = {
${list}};
const size_t cpl_n_task_texts = sizeof cpl_task_texts / sizeof *cpl_task_texts;
")
endfunction()
