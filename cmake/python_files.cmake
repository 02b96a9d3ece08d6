# The files that the program starts with Python (src/cli/verbs/cmd_compare.c): the package without parts for PyTorch.
function(install_python destination component)
    file(GLOB files CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/python python/couplet/compare/*.py
         python/couplet/compare/*.json)
    foreach(file IN LISTS files ITEMS couplet/__init__.py couplet/_program.py couplet/_version.py couplet/VERSION
                    couplet/report/__init__.py couplet/report/_files.py couplet/report/_resolve.py
                    couplet/report/page.py couplet/report/assets/charts.json couplet/report/assets/view.css
                    couplet/report/assets/view.html couplet/report/assets/view.js)
        get_filename_component(folder ${file} DIRECTORY)
        install(FILES python/${file} DESTINATION ${destination}/python/${folder} COMPONENT ${component})
    endforeach()
endfunction()
file(CREATE_LINK ${CMAKE_SOURCE_DIR}/python ${CMAKE_BINARY_DIR}/python SYMBOLIC) # beside the program that is built
